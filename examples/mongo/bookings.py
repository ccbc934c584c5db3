"""A booking and its confirmation in one MongoDB transaction, a retry, and what Compass shows of it.

    pip install 'holdfast[mongo]'
    python bookings.py 'mongodb://localhost/travel?replicaSet=rs0'        (or set HOLDFAST_URL)

The example makes a queue called example_mail and a collection example_bookings, and drops both at
the end.
"""

import os
import sys

from pymongo import MongoClient
from pymongo.client_session import ClientSession

import holdfast

QUEUE = "example_mail"


def work(hf: holdfast.Holdfast, client: MongoClient) -> None:
    mail = hf.queue(QUEUE, max_attempts=3, backoff=holdfast.Backoff(base=60, jitter="full"))
    database = client.get_default_database("holdfast")
    bookings = database["example_bookings"]

    def book(session: ClientSession, seat: str) -> None:
        bookings.insert_one({"_id": seat}, session=session)
        mail.enqueue({"confirm": seat}, within=session)
        if seat == "13F":
            raise LookupError("no such row")

    with client.start_session() as session:
        session.with_transaction(lambda session: book(session, "12A"))
        try:
            session.with_transaction(lambda session: book(session, "13F"))
        except LookupError as error:
            print("not booked:", error)
    print(f"{bookings.count_documents({})} booking, {mail.stats().ready} mail to send")

    (lease,) = mail.lease()
    mail.nack(lease, "the mail server is away")
    (task,) = database["holdfast.tasks"].find({"queue": QUEUE})
    later = task["next_retry_at"] - task["updated_at"]
    print(task["status"], "after", task["attempts"], "attempt:", task["error"])
    print("again within a minute:", 0 <= later.total_seconds() <= 60)


def main() -> None:
    url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("HOLDFAST_URL", "")
    if not url.startswith("mongodb"):
        sys.exit("which server? python bookings.py 'mongodb://localhost/travel?replicaSet=rs0'")
    with holdfast.connect(url) as hf, MongoClient(url) as client:
        try:
            work(hf, client)
        finally:
            hf.queue(QUEUE).delete(force=True)
            client.get_default_database("holdfast")["example_bookings"].drop()


if __name__ == "__main__":
    main()
