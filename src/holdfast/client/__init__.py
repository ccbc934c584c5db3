"""A server instead of a store: `holdfast.connect("http://...")` or `"grpc://..."`.

The same face as the library, over a wire: every verb is one call, every error is the library's own.
"""

from holdfast.client.remote import RemoteHoldfast, open_url

__all__ = ["RemoteHoldfast", "open_url"]
