//! Binary push, packed transactions and framed pop: the same behaviour in every form, and what is theirs alone.

mod framed;
mod parity;
mod refusals;
mod transactions;
