"""What happens to a message that fails: retried with backoff, dead-lettered, fixed, redriven."""

import threading

import holdfast
from holdfast import Backoff, Fail, Retry
from holdfast.testing import wait_until

hf = holdfast.connect("sqlite:///retries.db")
orders = hf.queue("orders", max_attempts=3, backoff=Backoff(base=0.05, factor=2.0, jitter="full"))
rates = {"DE": 19}


@hf.handler("orders")
def price(order: dict[str, str], attempt: int) -> int:
    if order["country"] == "??":
        raise Fail("no such country", code="BAD_COUNTRY")  # it will never work: dead at once
    if order["country"] == "FR" and attempt == 1:
        raise Retry("the rates are being updated", delay=0.1)  # in 0.1 s, whatever the backoff
    if order["country"] == "FR":
        return 20
    return rates[order["country"]]  # any other exception: again, after the backoff


def work_all() -> None:
    """A worker runs for ever; this one until every order is done or dead."""
    worker = hf.worker()
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: orders.stats().done + orders.stats().dead == 4)
    worker.stop()
    thread.join()


orders.enqueue_many({"country": country} for country in ("DE", "FR", "IT", "??"))
work_all()

print("dead letters:")
for entry in orders.dlq.browse():
    dead = entry.message
    errors = ", ".join(f"{error.code}: {error.message}" for error in dead.errors)
    print(f"  {dead.payload['country']}: {dead.reason} after {dead.attempts} ({errors})")

rates["IT"] = 22  # the fix
print("redriven:", hf.redrive("orders.dlq", count=0).redriven)
work_all()

for finished in orders.log():
    message = finished.message
    print(message.payload["country"], finished.result, f"redriven {message.redriven} times")
print(orders.stats().dead, "still dead: it needed another fix")
assert (orders.stats().done, orders.stats().dead) == (3, 1)
hf.close()
