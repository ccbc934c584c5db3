"""One order, two groups: each works it by itself, and one that comes later catches up."""

import holdfast
from holdfast import Fail
from holdfast.testing import drain

hf = holdfast.connect("sqlite:///topics.db")
orders = hf.topic("orders")
billing = orders.bind("billing", max_attempts=2)
mail = orders.bind("mail")
letters: list[str] = []
closed = True


@hf.handler(billing)
def bill(order: dict[str, str]) -> str:
    if closed and order["country"] == "IT":
        raise Fail("the bank is closed")
    return f"billed {order['who']}"


@hf.handler(mail)
def thank(order: dict[str, str]) -> None:
    letters.append(order["who"])


for who, country in (("Ada", "UK"), ("Grace", "US"), ("Laura", "IT")):
    orders.publish({"who": who, "country": country}, key=who)  # to both, or to none
drain(hf)
print(f"billing: {billing.stats().done} done, {billing.stats().dead} dead; letters: {letters}")

closed = False
hf.redrive(billing.dlq.name)
drain(hf)
print(f"billing: {billing.stats().done} done, {billing.stats().dead} dead; letters: {letters}")

audit = orders.bind("audit", start="earliest", partitions=4, ordered=True)
print("audit begins with", [entry.message.payload["who"] for entry in audit.browse()])

for stats in orders.stats().groups.values():
    print(f"{stats.queue}: {stats.ready} ready, {stats.done} done")
assert letters == ["Ada", "Grace", "Laura"]
hf.close()
