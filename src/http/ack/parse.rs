//! The bodies of acks. Source: data plane 5.1, 5.2.

use super::Form;
use crate::http::json::{JsonError, Scanner, Text, check_name};
use crate::http::push::parse::TOO_MANY;
use crate::limits::ITEMS_MAX;
use queen_shards::command::Disposition;
use std::borrow::Cow;

/// A whole good body.
#[derive(Debug, Default)]
pub struct Acks<'a> {
    /// `None`: queue mode.
    pub group: Option<Cow<'a, str>>,
    pub items: Vec<Ack<'a>>,
}

#[derive(Debug)]
pub struct Ack<'a> {
    /// As sent, `""` when absent.
    pub transaction_id: Cow<'a, str>,
    /// As sent, `""` when absent.
    pub partition_id: Cow<'a, str>,
    /// As sent, `""` when absent: lease-less.
    pub lease_id: Cow<'a, str>,
    pub word: Disposition,
    /// NUL and lone surrogates, which no store takes, are U+FFFD here.
    pub error: Option<Cow<'a, str>>,
}

/// Reads a body; the error is the text of a 400.
pub fn parse(body: &[u8], form: Form) -> Result<Acks<'_>, String> {
    let read = match form {
        Form::Single => single(body),
        Form::Batch => batch(body),
    };
    let acks = read.map_err(|error| format!("bad body: {}", error.describe(body)))?;
    check_name("consumerGroup", acks.group.as_deref().unwrap_or(""))?;
    Ok(acks)
}

fn single(body: &[u8]) -> Result<Acks<'_>, JsonError> {
    let mut scan = Scanner::new(body)?;
    let mut acks = Acks::default();
    let ack = item(&mut scan, Some(&mut acks.group))?;
    scan.end()?;
    acks.items.push(ack);
    Ok(acks)
}

fn batch(body: &[u8]) -> Result<Acks<'_>, JsonError> {
    let mut scan = Scanner::new(body)?;
    let mut acks = Acks::default();
    scan.enter_object("expected an object with `acknowledgments`")?;
    while let Some(key) = scan.next_key()? {
        if key.is("consumerGroup") {
            acks.group = text(&mut scan, "consumerGroup must be a string or null")?;
        } else if key.is("acknowledgments") {
            acks.items.clear();
            if scan.null()? {
                continue;
            }
            scan.enter_array("acknowledgments must be an array")?;
            while scan.next_element()? {
                if acks.items.len() == ITEMS_MAX {
                    return Err(scan.error(TOO_MANY));
                }
                acks.items.push(item(&mut scan, None)?);
            }
        } else {
            scan.skip()?;
        }
    }
    scan.end()?;
    Ok(acks)
}

/// One acknowledgment; its `consumerGroup` is read only where the body is one item.
fn item<'a>(scan: &mut Scanner<'a>, mut group: Option<&mut Option<Cow<'a, str>>>) -> Result<Ack<'a>, JsonError> {
    let (mut transaction_id, mut partition_id, mut lease_id) = (None, None, None);
    let (mut status, mut error) = (None, None);
    scan.enter_object("an acknowledgment must be an object")?;
    while let Some(key) = scan.next_key()? {
        if key.is("transactionId") {
            transaction_id = text(scan, "transactionId must be a string or null")?;
        } else if key.is("partitionId") {
            partition_id = text(scan, "partitionId must be a string or null")?;
        } else if key.is("leaseId") {
            lease_id = text(scan, "leaseId must be a string or null")?;
        } else if key.is("status") {
            status = scan.text_or_null("status must be a string or null")?;
        } else if key.is("error") {
            error = scan.text_or_null("error must be a string or null")?;
        } else if let Some(group) = group.as_deref_mut().filter(|_| key.is("consumerGroup")) {
            *group = text(scan, "consumerGroup must be a string or null")?;
        } else {
            scan.skip()?;
        }
    }
    Ok(Ack {
        transaction_id: transaction_id.unwrap_or_default(),
        partition_id: partition_id.unwrap_or_default(),
        lease_id: lease_id.unwrap_or_default(),
        word: status.map_or(Disposition::Completed, |status| disposition(&status)),
        error: error.map(|error| clean(error.decode_lossy())),
    })
}

fn text<'a>(scan: &mut Scanner<'a>, what: &'static str) -> Result<Option<Cow<'a, str>>, JsonError> {
    scan.text_or_null(what)?.map(|text| text.decode()).transpose()
}

/// What a status word acts as. Case-sensitive; anything unknown is a failure. Source: data plane 5.2.
pub(crate) fn disposition(status: &Text<'_>) -> Disposition {
    match &*status.decode_lossy() {
        "completed" | "success" | "acked" | "ok" => Disposition::Completed,
        "retry" => Disposition::Retry,
        "dlq" => Disposition::Dlq,
        _ => Disposition::Failed,
    }
}

/// A text that PostgreSQL stores: no NUL.
pub(crate) fn clean(text: Cow<'_, str>) -> Cow<'_, str> {
    if text.contains('\0') { Cow::Owned(text.replace('\0', "\u{fffd}")) } else { text }
}
