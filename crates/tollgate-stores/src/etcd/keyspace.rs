//! The keys under that of a limiter, and their changes.

use super::lease::Limit;
use super::wire::{Event, Pair};
use crate::queue::{Change, Node, parse_session};
use tollgate::remote::MAX_UNITS;
use tollgate::remote::{Session, StoreError};

/// Nodes of one transaction have one revision: these bits below it tell their places apart.
const BITS: u32 = 6;

/// A parsed key.
pub(super) enum StoredKey {
    Limit(Limit),
    Present(Session),
    Request(Node),
}

impl StoredKey {
    pub(super) fn read(under: &str, pair: &Pair) -> Option<Self> {
        let name = pair.key.strip_prefix(under)?;
        if name == "l" {
            return Some(Self::Limit(Limit {
                units: pair.number().filter(|&units| units <= MAX_UNITS)?,
                lease: pair.lease,
                revision: pair.mod_revision,
            }));
        }
        if let Some(session) = name.strip_prefix("s/") {
            return parse_session(session).map(Self::Present);
        }
        let mut parts = name.strip_prefix("w/")?.split('/');
        let (session, request, nth) = (parts.next()?, parts.next()?, parts.next()?);
        let nth: u64 = nth.parse().ok().filter(|nth| nth >> BITS == 0)?;
        // Revisions rise one by one: the bits above them stay unused for ages.
        let place = pair.create_revision.unsigned_abs() << BITS | nth;
        Some(Self::Request(Node {
            name: pair.key.as_str().into(),
            place,
            session: parse_session(session)?,
            request: request.parse().ok()?,
            units: pair.number().filter(|&units| units <= MAX_UNITS)?,
            token: place,
        }))
    }
}

/// The change of an event, if it is of interest.
pub(super) fn change(under: &str, event: &Event) -> Option<Change> {
    let pair = &event.kv;
    if event.is_delete() {
        let name = pair.key.strip_prefix(under)?;
        return match name.strip_prefix("s/") {
            Some(session) => parse_session(session).map(Change::Left),
            None if name.starts_with("w/") => Some(Change::Went(pair.key.as_str().into())),
            None => None,
        };
    }
    Some(match StoredKey::read(under, pair)? {
        StoredKey::Limit(limit) => Change::Resized(limit.units),
        StoredKey::Present(session) => Change::Entered(session),
        StoredKey::Request(node) if pair.create_revision == pair.mod_revision => Change::Came(node),
        StoredKey::Request(node) => Change::Shrank(node.place, node.units),
    })
}

pub(super) fn foreign(key: &str) -> StoreError {
    StoreError::Refused {
        why: format!("`{key}` is something else").into(),
    }
}
