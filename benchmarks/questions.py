"""A small set of questions with the passage that answers each: what relevance is measured on.

Written for this purpose. Some questions repeat the words of their passage, some say the same in other words, some ask
for a code; the last ones are about nothing that is there.
"""

PASSAGES = {
    "passport": "A passport is renewed at the town hall; bring the old one, a photo and 60 euros. It takes four weeks.",
    "parking": "Residents may park on streets with blue lines. A permit costs 30 euros a year and is tied to one car.",
    "library": "The library lends books for 28 days. A loan is extended twice, unless somebody else waits for it.",
    "bins": "Paper is collected on the first Monday of the month, glass on the third. Put the bins out before seven.",
    "dogs": "Dogs are registered within two weeks. The tax is 90 euros for the first dog and 120 for every other.",
    "pool": "The outdoor pool opens in May. Children under six swim for free when an adult is with them.",
    "noise": "Between ten at night and six it must be quiet. Drilling is allowed on workdays until eight.",
    "wedding": "A wedding is registered six months ahead. Both bring a certificate of birth and an identity card.",
    "water": "The water meter is read in December. A leak told by form W-17 in ten days is not charged in full.",
    "trees": "Who fells a tree with a trunk of more than 80 centimeters needs a permit and plants two new ones.",
    "fire": "Open fires are forbidden from April to September. Grills with a lid are allowed on your own ground.",
    "bus": "Line 7 runs every twelve minutes until eleven, then once an hour. A ticket is valid for ninety minutes.",
    "kindergarten": "Places in the kindergarten are given in March; parents who work come first, whatever they earn.",
    "election": "Postal votes are asked for until two days before the election, online or at the counter.",
    "compost": "Compost can be fetched at the depot on Saturdays, up to 200 liters for nothing. Bring bags.",
    "flat": "Whoever moves reports the new address within fourteen days, with the landlord's confirmation, form M-3.",
    "lost": "What was found is kept for six months in room 4; keys and phones are told by description.",
    "market": "The market is held on Wednesdays and Saturdays in front of the church. Stalls are given by the year.",
    "snow": "Owners clear the pavement of snow by seven. Salt is forbidden except on stairs; sand is at the depot.",
    "wifi": "The town has wifi in the square and the library; the code 5591 changes every first of the month.",
}

QUESTIONS = {
    "How do I renew my passport?": "passport",
    "what documents for a new travel document": "passport",
    "parking permit for residents, price": "parking",
    "How long may I keep a book?": "library",
    "when is paper collected": "bins",
    "Which day do they fetch the glass?": "bins",
    "tax for a second dog": "dogs",
    "do small children pay at the pool": "pool",
    "May I drill at seven in the evening?": "noise",
    "which papers do we need to get married": "wedding",
    "W-17": "water",
    "pipe burst, do I pay all the water": "water",
    "may I cut down the old oak": "trees",
    "Is a barbecue allowed in July?": "fire",
    "how often does line 7 run at night": "bus",
    "When are kindergarten places given?": "kindergarten",
    "voting by post, until when": "election",
    "free soil for my garden": "compost",
    "form M-3": "flat",
    "I moved to another street, whom do I tell?": "flat",
    "I lost my keys": "lost",
    "on which days is the market": "market",
    "who clears the pavement when it snows": "snow",
    "wifi code 5591": "wifi",
}

OFF_TOPIC = ["What is the capital of Peru?", "How do I train a neural network?", "best recipe for lasagna"]
