"""Your own rows and the queue in one SQLite transaction: both are written, or neither is.

The queue lives in the database that the application already has.
"""

import sqlite3

import holdfast

hf = holdfast.connect("sqlite:///transactional.db")
mail = hf.queue("mail")

db = sqlite3.connect("transactional.db")
db.execute("CREATE TABLE IF NOT EXISTS orders (item TEXT)")
db.execute("CREATE TABLE IF NOT EXISTS sent (message_id TEXT PRIMARY KEY)")
db.commit()


def place_order(item: str) -> None:
    """The letter goes out if, and only if, the order is in the database."""
    with db:  # commits at the end, rolls back on an error
        db.execute("INSERT INTO orders VALUES (?)", (item,))
        mail.enqueue({"text": f"thank you for the {item}"}, within=db)
        if item == "unicorn":
            raise LookupError("no such thing")


def send_letters() -> None:
    """The note that it was sent and the ack are one write: a crash between them cannot happen."""
    while leases := mail.lease():
        for lease in leases:
            with db:
                db.execute("INSERT INTO sent VALUES (?)", (lease.message.id,))
                mail.ack(lease, within=db)
            print("sent:", lease.message.payload["text"])


place_order("lantern")
try:
    place_order("unicorn")
except LookupError as error:
    print("not placed:", error)

send_letters()

orders = db.execute("SELECT count(*) FROM orders").fetchone()[0]
sent = db.execute("SELECT count(*) FROM sent").fetchone()[0]
print(f"{orders} order, {sent} letter, {mail.stats().done} done")
assert orders == sent == mail.stats().done

db.close()
hf.close()
