"""What models write around the JSON they were asked for, in four languages and scripts."""

from __future__ import annotations

from enum import StrEnum

import attrs


class Language(StrEnum):
    """The language of the text around a value."""

    ENGLISH = "en"
    CHINESE = "zh"
    ARABIC = "ar"
    HINDI = "hi"


@attrs.frozen(kw_only=True)
class Phrases:
    """Sentences of one language, by where they stand."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    thinking: tuple[str, ...]
    draft: tuple[str, ...]
    refusal: tuple[str, ...]
    comment: str


PHRASES: dict[Language, Phrases] = {
    Language.ENGLISH: Phrases(
        before=(
            "Sure! Here is the JSON you asked for:",
            "Here's what I found (note: all fields are filled in):",
            "Based on the {input} you gave me, the result is as follows.",
            'I read the document twice. "Final" answer:',
        ),
        after=(
            "Let me know if you'd like me to change anything!",
            "I hope this helps; it's the object you described, isn't it?",
            "Note: values were taken from the text as they stand.",
        ),
        thinking=(
            "The user wants an object. Let me check each field: first, second, done.",
            "Hmm, {maybe} a list? No: the schema says object.",
        ),
        draft=("Format example:", "The shape will be:"),
        refusal=("I'm sorry, but I can't help with that request.", "I cannot produce this output."),
        comment="as stated in the text",
    ),
    Language.CHINESE: Phrases(
        before=(
            "好的，以下是您需要的 JSON：",
            "根据您提供的内容，结果如下：",
            "我已经分析了文本（共两段），“最终”答案是：",
        ),
        after=("如需修改，请告诉我！", "希望对您有帮助。", "说明：所有字段均来自原文。"),
        thinking=("用户需要一个对象。我先检查每个字段：没有问题。", "嗯，是列表吗？不，模式要求对象。"),
        draft=("格式示例：", "结构如下："),
        refusal=("抱歉，我无法协助完成这个请求。", "对不起，我不能生成该内容。"),
        comment="来自原文",
    ),
    Language.ARABIC: Phrases(
        before=(
            "بالتأكيد! إليك كائن JSON المطلوب:",
            "بناءً على النص الذي قدمته، النتيجة هي:",
            "قرأت النص مرتين، و«النتيجة» النهائية:",
        ),
        after=(
            "أخبرني إذا كنت تريد أي تعديل.",
            "آمل أن يكون هذا مفيدًا؛ شكرًا لك.",
            "ملاحظة: القيم مأخوذة من النص كما هي.",
        ),
        thinking=(
            "المستخدم يريد كائنًا. سأتحقق من كل حقل، واحدًا تلو الآخر.",
            "هل هي قائمة؟ لا، المطلوب كائن.",
        ),
        draft=("مثال على الصيغة:", "سيكون الشكل:"),
        refusal=("عذرًا، لا أستطيع المساعدة في هذا الطلب.", "آسف، لا يمكنني إنشاء هذا المحتوى."),
        comment="كما ورد في النص",
    ),
    Language.HINDI: Phrases(
        before=(
            "ज़रूर! यह रहा आपका JSON:",
            "आपके दिए गए पाठ के आधार पर परिणाम यह है:",
            "मैंने पाठ दो बार पढ़ा। 'अंतिम' उत्तर:",
        ),
        after=("यदि कुछ बदलना हो तो बताइए।", "आशा है कि इससे मदद मिलेगी।", "टिप्पणी: सभी मान पाठ से लिए गए हैं।"),
        thinking=("उपयोगकर्ता को एक ऑब्जेक्ट चाहिए। मैं हर फ़ील्ड जाँचता हूँ।", "क्या यह सूची है? नहीं, ऑब्जेक्ट।"),
        draft=("प्रारूप का उदाहरण:", "रूप ऐसा होगा:"),
        refusal=("क्षमा करें, मैं इस अनुरोध में मदद नहीं कर सकता।", "माफ़ कीजिए, मैं यह नहीं बना सकता।"),
        comment="पाठ के अनुसार",
    ),
}
"""The sentences of every language."""
