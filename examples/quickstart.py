"""Enqueue, work, look at what happened. Run it anywhere: it writes quickstart.db and no more."""

import holdfast

hf = holdfast.connect("sqlite:///quickstart.db")
mail = hf.queue("mail")


@hf.handler("mail")
def send(letter: dict[str, str]) -> str:
    print(f"dear {letter['to']}: {letter['text']}")
    return "sent"


mail.enqueue({"to": "Ada", "text": "your order is on its way"})
mail.enqueue_many({"to": name, "text": "we have news"} for name in ("Grace", "Edsger"))

hf.work(until_empty=True, concurrency=1)  # without until_empty: until Ctrl-C or SIGTERM

for finished in mail.log():
    print(finished.message.payload["to"], finished.status, finished.result)
hf.close()
