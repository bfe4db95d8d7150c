//! Keys, and the operations of a transaction that changes them. No I/O.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Serialize;

/// A key with its value and state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) value: Vec<u8>,
    /// The number of the write that changed it last: of all writes to the store, so that it only grows.
    pub(super) index: u64,
    /// The session that locks it.
    pub(super) session: Option<String>,
}

/// One operation of a transaction. All are carried out, or none.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Op {
    #[serde(rename = "KV")]
    kv: Kv,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Kv {
    verb: &'static str,
    key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
}

impl Op {
    fn kv(verb: &'static str, key: &str) -> Kv {
        let key = key.to_owned();
        Kv {
            verb,
            key,
            ..Kv::default()
        }
    }

    /// Locks the key for the session, and creates it if it is missing. Fails if another session has it.
    pub(super) fn lock(key: &str, value: &[u8], session: &str) -> Self {
        let (value, session) = (Some(BASE64.encode(value)), Some(session.to_owned()));
        let kv = Self::kv("lock", key);
        Self {
            kv: Kv { value, session, ..kv },
        }
    }

    /// Fails unless the key is locked by the session.
    pub(super) fn check_session(key: &str, session: &str) -> Self {
        let session = Some(session.to_owned());
        let kv = Self::kv("check-session", key);
        Self {
            kv: Kv { session, ..kv },
        }
    }

    /// Writes. Its lock stays.
    pub(super) fn set(key: &str, value: &[u8]) -> Self {
        let value = Some(BASE64.encode(value));
        let kv = Self::kv("set", key);
        Self { kv: Kv { value, ..kv } }
    }

    /// Writes, if the key was last changed by this write; with 0, if it is missing.
    ///
    /// Consul ignores a write that changes nothing, and reports success: so no two writers may write the same.
    pub(super) fn cas(key: &str, value: &[u8], index: u64) -> Self {
        let (value, index) = (Some(BASE64.encode(value)), Some(index));
        let kv = Self::kv("cas", key);
        Self {
            kv: Kv { value, index, ..kv },
        }
    }

    /// Fails unless the key was last changed by this write.
    pub(super) fn check_index(key: &str, index: u64) -> Self {
        let index = Some(index);
        let kv = Self::kv("check-index", key);
        Self { kv: Kv { index, ..kv } }
    }

    pub(super) fn delete(key: &str) -> Self {
        Self {
            kv: Self::kv("delete", key),
        }
    }

    /// Deletes the key, if it was last changed by this write.
    pub(super) fn delete_cas(key: &str, index: u64) -> Self {
        let index = Some(index);
        let kv = Self::kv("delete-cas", key);
        Self { kv: Kv { index, ..kv } }
    }
}

/// The most operations of a transaction.
pub(super) const MOST_OPS: usize = 64;
