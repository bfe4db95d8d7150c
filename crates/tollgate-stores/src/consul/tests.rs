//! Keys that behave as Consul's do in a transaction, for tests.

use super::api::{Entry, MOST_OPS, Op};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Keys, changed by transactions.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    pub(super) entries: BTreeMap<String, Entry>,
    /// The number of the last write.
    pub(super) index: u64,
    ended: BTreeSet<String>,
}

impl Keys {
    pub(super) fn list(&self) -> Vec<Entry> {
        self.entries.values().cloned().collect()
    }

    /// Carries out all of `ops`, or none of them.
    pub(super) fn change(&mut self, ops: &[Op]) -> Option<u64> {
        assert!(ops.len() <= MOST_OPS, "{}", ops.len());
        let (before, index) = (self.clone(), self.index + 1);
        for op in ops {
            if !self.carry_out(&serde_json::to_value(op).unwrap()["KV"], index) {
                *self = before;
                return None;
            }
        }
        self.index = index;
        Some(index)
    }

    fn carry_out(&mut self, op: &Value, index: u64) -> bool {
        let key = op["Key"].as_str().unwrap().to_owned();
        let old = self.entries.get(&key).cloned();
        let asked = op["Index"].as_u64().unwrap_or(0);
        let at = old.as_ref().map_or(0, |old| old.index);
        let owner = old.as_ref().and_then(|old| old.session.clone());
        let session = op["Session"].as_str().map(str::to_owned);
        let verb = op["Verb"].as_str().unwrap();
        let holds = match verb {
            "set" | "delete" => true,
            "cas" => at == asked,
            "lock" => {
                let lives = session.as_ref().is_some_and(|session| !self.ended.contains(session));
                lives && (owner.is_none() || owner == session)
            }
            "check-index" => old.is_some() && at == asked,
            "check-session" => old.is_some() && owner == session,
            // There is nothing to delete: Consul reports success.
            "delete-cas" => old.is_none() || at == asked,
            _ => panic!("{verb}"),
        };
        if !holds {
            return false;
        }
        match verb {
            "set" | "cas" | "lock" => {
                let value = BASE64.decode(op["Value"].as_str().unwrap()).unwrap();
                let session = session.or(owner);
                let new = Entry {
                    key: key.clone(),
                    value,
                    index,
                    session,
                };
                // A write that changes nothing is ignored.
                let same = old.is_some_and(|old| old.value == new.value && old.session == new.session);
                if !same {
                    self.entries.insert(key, new);
                }
            }
            "delete" | "delete-cas" => drop(self.entries.remove(&key)),
            _ => {}
        }
        true
    }

    /// Ends the session that Consul calls `id`, and deletes its locked keys.
    pub(super) fn die(&mut self, id: &str) {
        self.index += 1;
        self.ended.insert(id.to_owned());
        self.entries.retain(|_, entry| entry.session.as_deref() != Some(id));
    }

    /// The slots in use.
    pub(super) fn taken(&self) -> Vec<&Entry> {
        let taken = self.entries.values().filter(|entry| entry.session.is_some());
        taken.filter(|entry| entry.key.starts_with("at/")).collect()
    }
}
