"""An order and its letter in one PostgreSQL transaction: both are written, or neither is.

    pip install 'holdfast[postgres]' sqlalchemy
    python orders.py postgresql://you@localhost/shop        (or set HOLDFAST_URL)

The queue lives in the database that the application already has. Once with psycopg, once with
SQLAlchemy; a Django connection inside transaction.atomic() goes the same way. The example makes a
table and a queue, both called example_orders, and deletes them at the end.
"""

import os
import sys

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session

import holdfast

TABLE = QUEUE = "example_orders"


def with_psycopg(url: str, mail: holdfast.Queue) -> None:
    """The letter goes out if, and only if, the order is in the database."""
    with psycopg.connect(url) as db:
        for item in ("lantern", "unicorn"):
            try:
                with db.transaction():  # commits at the end, rolls back on an error
                    db.execute(f"INSERT INTO {TABLE} VALUES (%s)", (item,))
                    mail.enqueue({"text": f"thank you for the {item}"}, within=db)
                    must_exist(item)
                print("psycopg: placed", item)
            except LookupError as error:
                print("psycopg: not placed:", error)


def with_sqlalchemy(url: str, mail: holdfast.Queue) -> None:
    engine = sqlalchemy.create_engine(
        sqlalchemy.make_url(url).set(drivername="postgresql+psycopg")  # the driver we share
    )
    insert = sqlalchemy.text(f"INSERT INTO {TABLE} VALUES (:item)")
    for item in ("compass", "dragon"):
        try:
            with Session(engine) as session, session.begin():
                session.execute(insert, {"item": item})
                mail.enqueue({"text": f"thank you for the {item}"}, within=session)
                must_exist(item)
            print("sqlalchemy: placed", item)
        except LookupError as error:
            print("sqlalchemy: not placed:", error)
    engine.dispose()


def must_exist(item: str) -> None:
    if item in ("unicorn", "dragon"):
        raise LookupError(f"there is no {item}")


def send_letters(url: str, mail: holdfast.Queue) -> None:
    """The note that it was sent and the ack are one write: a crash between them cannot happen."""
    with psycopg.connect(url) as db:
        while leases := mail.lease():
            for lease in leases:
                item = lease.message.payload["text"].split()[-1]
                with db.transaction():
                    db.execute(f"UPDATE {TABLE} SET sent = true WHERE item = %s", (item,))
                    mail.ack(lease, within=db)
                print("sent:", lease.message.payload["text"])


def main(url: str) -> None:
    with psycopg.connect(url) as db, holdfast.connect(url) as hf:
        db.execute(f"CREATE TABLE IF NOT EXISTS {TABLE} (item text, sent boolean DEFAULT false)")
        db.execute(f"TRUNCATE {TABLE}")
        db.commit()
        mail = hf.queue(QUEUE)
        with_psycopg(url, mail)
        with_sqlalchemy(url, mail)
        send_letters(url, mail)
        rows = db.execute(f"SELECT item, sent FROM {TABLE} ORDER BY item").fetchall()
        done = mail.stats().done
        print(f"{len(rows)} orders, {sum(sent for _, sent in rows)} sent, {done} done")
        db.execute(f"DROP TABLE {TABLE}")
        db.commit()
        mail.delete(force=True)
        if rows != [("compass", True), ("lantern", True)] or done != len(rows):
            sys.exit(f"that is not what was asked for: {rows}, {done} done")


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("HOLDFAST_URL")
    if not given:
        sys.exit("which database? python orders.py postgresql://you@localhost/shop")
    main(given)
