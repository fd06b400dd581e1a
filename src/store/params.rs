//! Parameters written straight into the wire buffer: arrays and blobs that never exist as a `Vec` first.

use super::rows::Tid;
use bytes::{BufMut, BytesMut};
use queen_shards::ids::Stamp;
use std::error::Error;
use std::fmt;
use tokio_postgres::types::{IsNull, ToSql, Type};

/// A parameter with its type, as `query_typed` takes it.
pub type Param<'a> = (&'a (dyn ToSql + Sync), Type);

type Written = Result<IsNull, Box<dyn Error + Sync + Send>>;

/// What an array may hold.
pub trait Element {
    const TYPE: Type;
    const ARRAY: Type;
    fn put(&self, out: &mut BytesMut);
}

macro_rules! element {
    ($rust:ty, $type:ident, $array:ident, |$value:ident, $out:ident| $put:expr) => {
        impl Element for $rust {
            const TYPE: Type = Type::$type;
            const ARRAY: Type = Type::$array;
            fn put(&self, $out: &mut BytesMut) {
                let $value = self;
                $put
            }
        }
    };
}

element!(i16, INT2, INT2_ARRAY, |v, out| out.put_i16(*v));
element!(i32, INT4, INT4_ARRAY, |v, out| out.put_i32(*v));
element!(i64, INT8, INT8_ARRAY, |v, out| out.put_i64(*v));
element!(bool, BOOL, BOOL_ARRAY, |v, out| out.put_u8(*v as u8));
element!(u128, UUID, UUID_ARRAY, |v, out| out.put_u128(*v));
element!(&str, TEXT, TEXT_ARRAY, |v, out| out.put_slice(v.as_bytes()));
element!(&[u8], BYTEA, BYTEA_ARRAY, |v, out| out.put_slice(v));
element!(Stamp, TIMESTAMPTZ, TIMESTAMPTZ_ARRAY, |v, out| out.put_i64(to_pg(*v)));

element!(Tid, TID, TID_ARRAY, |v, out| {
    out.put_u32(v.block);
    out.put_u16(v.item);
});

/// UTF-8 that still comes as bytes; PostgreSQL checks it.
pub struct Utf8<'a>(pub &'a [u8]);
element!(Utf8<'_>, TEXT, TEXT_ARRAY, |v, out| out.put_slice(v.0));

/// Microseconds between 1970 and PostgreSQL's epoch, 2000.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// A stamp as PostgreSQL counts.
pub fn to_pg(stamp: Stamp) -> i64 {
    stamp.0.saturating_sub(EPOCH_2000)
}

/// PostgreSQL's count as a stamp.
pub fn from_pg(micros: i64) -> Stamp {
    Stamp(micros.saturating_add(EPOCH_2000))
}

/// One value.
pub struct One<E>(pub Option<E>);

/// An array of `n` values that a function tells one after the other; `None` is null.
pub struct Column<F> {
    n: usize,
    value: F,
}

/// An array of what `value` says for 0 to n-1.
pub fn column<E: Element, F: Fn(usize) -> E + Sync>(n: usize, value: F) -> Column<impl Fn(usize) -> Option<E> + Sync> {
    Column { n, value: move |i| Some(value(i)) }
}

/// An array with nulls.
pub fn nullable<E: Element, F: Fn(usize) -> Option<E> + Sync>(n: usize, value: F) -> Column<F> {
    Column { n, value }
}

/// One `bytea` out of `n` pieces.
pub struct Blob<F> {
    n: usize,
    piece: F,
}

/// The pieces 0 to n-1, glued.
pub fn blob<'a, F: Fn(usize) -> &'a [u8] + Sync>(n: usize, piece: F) -> Blob<F> {
    Blob { n, piece }
}

/// `value` with its type.
pub fn param<'a, T: Typed + Sync>(value: &'a T) -> Param<'a> {
    (value, value.kind())
}

/// A parameter that knows its own type.
pub trait Typed: ToSql {
    fn kind(&self) -> Type;
}

impl<E: Element> One<E> {
    pub fn of(value: E) -> One<E> {
        One(Some(value))
    }
}

impl<E: Element + Sync> Typed for One<E> {
    fn kind(&self) -> Type {
        E::TYPE
    }
}

impl<E: Element, F: Fn(usize) -> Option<E> + Sync> Typed for Column<F> {
    fn kind(&self) -> Type {
        E::ARRAY
    }
}

impl<'a, F: Fn(usize) -> &'a [u8] + Sync> Typed for Blob<F> {
    fn kind(&self) -> Type {
        Type::BYTEA
    }
}

impl<E: Element + Sync> ToSql for One<E> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Written {
        Ok(match &self.0 {
            Some(value) => {
                value.put(out);
                IsNull::No
            }
            None => IsNull::Yes,
        })
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    tokio_postgres::types::to_sql_checked!();
}

impl<E: Element, F: Fn(usize) -> Option<E> + Sync> ToSql for Column<F> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Written {
        out.put_i32(1); // One dimension,
        out.put_i32(1); // perhaps with nulls.
        out.put_u32(E::TYPE.oid());
        out.put_i32(i32::try_from(self.n)?);
        out.put_i32(1); // Lower bound.
        for i in 0..self.n {
            let at = out.len();
            out.put_i32(-1); // Null, until the length is known.
            if let Some(value) = (self.value)(i) {
                value.put(out);
                let len = i32::try_from(out.len() - at - 4)?;
                out[at..at + 4].copy_from_slice(&len.to_be_bytes());
            }
        }
        Ok(IsNull::No)
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    tokio_postgres::types::to_sql_checked!();
}

impl<'a, F: Fn(usize) -> &'a [u8] + Sync> ToSql for Blob<F> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Written {
        out.reserve((0..self.n).map(|i| (self.piece)(i).len()).sum());
        (0..self.n).for_each(|i| out.put_slice((self.piece)(i)));
        Ok(IsNull::No)
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    tokio_postgres::types::to_sql_checked!();
}

impl<E: Element> fmt::Debug for One<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", E::TYPE)
    }
}
impl<F> fmt::Debug for Column<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.n)
    }
}
impl<F> fmt::Debug for Blob<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pieces", self.n)
    }
}
