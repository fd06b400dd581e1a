//! Rows as PostgreSQL sends them to the engine's shapes.

use crate::store::params::from_pg;
use bytes::Bytes;
use queen_shards::effect::{CursorRow, LaneRow, Options, QueueRow, StoreError};
use queen_shards::ids::{LeaseId, Offset, PartitionId, QueueId, Stamp, TenantId};
use std::error::Error;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

/// A `timestamptz`, a `uuid`: fixed width, read without a calendar.
#[derive(Clone, Copy)]
struct Time(Stamp);
#[derive(Clone, Copy)]
struct Uuid(u128);

impl<'a> FromSql<'a> for Time {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Time, Box<dyn Error + Sync + Send>> {
        Ok(Time(from_pg(i64::from_be_bytes(raw.try_into()?))))
    }
    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }
}

impl<'a> FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Uuid, Box<dyn Error + Sync + Send>> {
        Ok(Uuid(u128::from_be_bytes(raw.try_into()?)))
    }
    fn accepts(kind: &Type) -> bool {
        *kind == Type::UUID
    }
}

/// Where a version of a row lies in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tid {
    pub block: u32,
    pub item: u16,
}

impl<'a> FromSql<'a> for Tid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Tid, Box<dyn Error + Sync + Send>> {
        let [a, b, c, d, e, f] = raw.try_into()?;
        Ok(Tid { block: u32::from_be_bytes([a, b, c, d]), item: u16::from_be_bytes([e, f]) })
    }
    fn accepts(kind: &Type) -> bool {
        *kind == Type::TID
    }
}

/// Reads the columns of a row one after the other.
pub struct Columns<'a> {
    row: &'a Row,
    next: usize,
}

type Read<T> = Result<T, StoreError>;

impl<'a> Columns<'a> {
    pub fn of(row: &'a Row) -> Columns<'a> {
        Columns { row, next: 0 }
    }

    /// The next column. A type that does not fit means that other functions are installed than this binary brought.
    pub fn get<T: FromSql<'a>>(&mut self) -> Read<T> {
        let at = self.next;
        self.next += 1;
        self.row.try_get(at).map_err(|e| StoreError::Refused(format!("unexpected answer: {e}")))
    }

    pub fn skip(&mut self, columns: usize) {
        self.next += columns;
    }

    pub fn offset(&mut self) -> Read<Offset> {
        self.get().map(Offset)
    }

    pub fn offset_opt(&mut self) -> Read<Option<Offset>> {
        Ok(self.get::<Option<i64>>()?.map(Offset))
    }

    pub fn stamp(&mut self) -> Read<Stamp> {
        Ok(self.get::<Time>()?.0)
    }

    pub fn stamp_opt(&mut self) -> Read<Option<Stamp>> {
        Ok(self.get::<Option<Time>>()?.map(|t| t.0))
    }

    pub fn lease(&mut self) -> Read<LeaseId> {
        Ok(self.get::<Option<Uuid>>()?.map_or(LeaseId::NONE, |u| LeaseId(u.0)))
    }

    pub fn tenant_opt(&mut self) -> Read<Option<TenantId>> {
        Ok(self.get::<Option<Uuid>>()?.map(|id| TenantId(id.0)))
    }

    pub fn count(&mut self) -> Read<u32> {
        Ok(self.get::<i32>()?.max(0) as u32)
    }

    pub fn bytes(&mut self) -> Read<Bytes> {
        self.get::<&[u8]>().map(Bytes::copy_from_slice)
    }

    /// queue_id and eight option columns. `completed_secs` is a later column.
    pub fn queue(&mut self) -> Read<QueueRow> {
        let id = QueueId(self.get::<Uuid>()?.0);
        let options = Options {
            lease_secs: self.count()?,
            retry_limit: self.count()?,
            dead_letter: self.get()?,
            delay_secs: self.count()?,
            window_secs: self.count()?,
            dedup_secs: self.count()?,
            fill_wait_ms: self.count()?,
            encrypted: self.get()?,
            completed_secs: 0,
        };
        Ok(QueueRow { id, options })
    }

    /// The queue again, with its last option.
    pub fn completed(&mut self, queue: QueueRow) -> Read<QueueRow> {
        Ok(QueueRow { options: Options { completed_secs: self.count()?, ..queue.options }, ..queue })
    }

    /// A queue's columns, then partition_id, last_offset, log_start, last_created_at. `completed_secs` is a later column.
    pub fn lane(&mut self) -> Read<LaneRow> {
        Ok(LaneRow {
            queue: self.queue()?,
            partition: PartitionId(self.get()?),
            last_offset: self.offset()?,
            log_start: self.offset()?,
            last_created_at: self.stamp()?,
        })
    }

    /// version, committed, lease_id, lease_expires_at, batch_end, retry_count, attempt_start, attempt_count; `None`
    /// when there is no row. `conflating` is a later column.
    pub fn cursor(&mut self, now: Stamp) -> Read<Option<CursorRow>> {
        let Some(version) = self.get::<Option<i64>>()? else {
            self.skip(7);
            return Ok(None);
        };
        Ok(Some(CursorRow {
            version,
            committed: self.offset()?,
            lease: self.lease()?,
            lease_left_us: lease_left(self.stamp_opt()?, now),
            batch_end: self.offset_opt()?,
            conflating: false,
            retry_count: self.count()?,
            attempt_start: self.offset_opt()?,
            attempt_count: self.count()?,
        }))
    }
}

/// Microseconds until a lease ends; 0 when there is none.
pub fn lease_left(expires_at: Option<Stamp>, now: Stamp) -> i64 {
    expires_at.map_or(0, |at| at.0.saturating_sub(now.0))
}

/// One outcome per question, put where it belongs; the first one of a place counts.
pub struct Outcomes<T>(Vec<Option<T>>);

impl<T> Outcomes<T> {
    pub fn new(n: usize) -> Outcomes<T> {
        Outcomes(std::iter::repeat_with(|| None).take(n).collect())
    }

    pub fn put(&mut self, ord: i64, outcome: impl FnOnce() -> Result<T, StoreError>) -> Result<(), StoreError> {
        let place = usize::try_from(ord - 1).ok().and_then(|at| self.0.get_mut(at));
        let place = place.ok_or_else(|| StoreError::Unknown(format!("an outcome for place {ord}")))?;
        if place.is_none() {
            *place = Some(outcome()?);
        }
        Ok(())
    }

    pub fn all(self) -> Result<Vec<T>, StoreError> {
        let n = self.0.len();
        let all: Vec<T> = self.0.into_iter().flatten().collect();
        match all.len() == n {
            true => Ok(all),
            false => Err(StoreError::Unknown(format!("{} outcomes for {n} questions", all.len()))),
        }
    }
}
