"""Tutorial 8, run page and traces. Run it: `python examples/tutorial/08_run_page_and_traces.py`."""

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flujo_actors import Flujo, Step, make_agent_async
from flujo_actors.telemetry.otel import OtelSink
from flujo_actors.testing import scripted_model

model = scripted_model("A new kettle is on its way.")
# model = "openai:gpt-5"     # a real model: needs OPENAI_API_KEY and the extra `openai`

exporter = InMemorySpanExporter()  # in production a BatchSpanProcessor with an OTLPSpanExporter
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

flujo = Flujo(
    Step("answer", make_agent_async(model, "You answer customers.")),
    store="sqlite:///desk.db",
    labels={"title": "broken kettle"},
    settings={"telemetry": {"sinks": [OtelSink(provider)]}},
)
flujo.run("My kettle arrived broken.", run_id="answer-1")

for span in exporter.get_finished_spans():
    print(span.name)
