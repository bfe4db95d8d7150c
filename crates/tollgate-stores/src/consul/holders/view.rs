//! The folder of a limiter with a document, a sync's change of it, and the operations for that. No I/O.

use crate::consul::api::{Entry, MOST_OPS, Op};
use crate::document::{PermitsDocument, is_near, sync_at_version, wants_news};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tollgate::remote::model::{Outcome, Permits};
use tollgate::remote::{Session, StoreError, SyncReply, SyncRequest};

/// A transaction is at most 512 KiB long, and its values grow by a third on the way.
const LONGEST: usize = 320 * 1024;
/// Sessions notified in the transaction itself: each takes two operations, and there are two more.
pub(super) const MOST_NOTIFIED: usize = (MOST_OPS - 2) / 2;
/// Sessions with one of the first places check for dead sessions. The others do when they renew.
const LOOKOUTS: usize = 3;
/// The bits of a token below the number of the store's write: no document grants more at once.
const TOKENS: u32 = 16;

/// Texts that are never the same twice: Consul ignores a write that changes nothing.
type Nonce<'a> = &'a dyn Fn() -> String;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope {
    /// Never the same twice: Consul ignores a write that changes nothing.
    nonce: String,
    permits: PermitsDocument,
}

impl Envelope {
    fn text(&self, place: &Place) -> Result<Vec<u8>, StoreError> {
        let refused = |why: String| StoreError::Refused { why: why.into() };
        let text = serde_json::to_vec(self).map_err(|error| refused(error.to_string()))?;
        if text.len() > LONGEST {
            let (name, length) = (place.document(), text.len());
            return Err(refused(format!(
                "{name} would be {length} bytes long, and {LONGEST} are allowed"
            )));
        }
        Ok(text)
    }
}

/// The keys at one instant.
pub(super) struct View {
    /// Zero without a document.
    index: u64,
    model: Permits,
    /// The permits as they were read.
    contents: Option<PermitsDocument>,
    /// The keys of the sessions, by the names of these.
    lives: HashMap<String, Entry>,
    /// The last known write.
    last: u64,
}

/// The place of a limiter's keys.
pub(super) struct Place(pub(super) String);

impl Place {
    fn document(&self) -> String {
        format!("{}holders", self.0)
    }

    pub(super) fn life(&self, session: Session) -> String {
        format!("{}by/{session}", self.0)
    }
}

impl View {
    /// Parses the keys in a folder, of which the last was written by the write `last`.
    pub(super) fn of(place: &Place, entries: Vec<Entry>, last: u64, limit: u64) -> Result<Self, StoreError> {
        let (mut document, mut lives) = (None, HashMap::new());
        for entry in entries {
            match entry.key.strip_prefix(&place.0) {
                Some("holders") => document = Some(entry),
                Some("") | None => {}
                Some(key) => {
                    let Some(name) = key.strip_prefix("by/") else {
                        // Slots, most likely: their grants are not in the document.
                        let why = format!("{} is not of a limiter with a document of permits", entry.key);
                        return Err(StoreError::Refused { why: why.into() });
                    };
                    lives.insert(name.to_owned(), entry);
                }
            }
        }
        let (index, model, contents) = match document {
            None => (0, Permits::new(limit, 0), None),
            Some(document) => {
                let other = || StoreError::Refused {
                    why: format!("{} is no document of permits", place.document()).into(),
                };
                let read: Envelope = serde_json::from_slice(&document.value).map_err(|_| other())?;
                let model = read.permits.permits().ok_or_else(other)?;
                (document.index, model, Some(read.permits))
            }
        };
        Ok(Self {
            index,
            model,
            contents,
            lives,
            last,
        })
    }

    /// Consul's id of the session that locks the key of this one.
    fn owner(&self, session: Session) -> Option<&str> {
        self.lives.get(&session.to_string())?.session.as_deref()
    }

    /// The last write to the key of this session, zero when it is missing.
    pub(super) fn life(&self, session: Session) -> u64 {
        self.lives.get(&session.to_string()).map_or(0, |entry| entry.index)
    }

    /// Whether the session checks for dead ones.
    pub(super) fn looks_out(&self, session: Session) -> bool {
        is_near(&self.model, session, LOOKOUTS)
    }

    /// Whether the session waits for a grant, or keeps units that others may want.
    pub(super) fn wants_news(&self, session: Session) -> bool {
        wants_news(&self.model, session)
    }
}

/// The role of a session in the document that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is in it, and stays.
    There,
    /// It is not, and comes.
    Comes,
    /// It is not to be in it.
    Gone,
}

/// The outcome of a sync, once `ops` have been written.
pub(super) struct Plan {
    pub(super) reply: SyncReply,
    pub(super) notify: Vec<Session>,
    /// It was not in the document before.
    pub(super) comes: bool,
    pub(super) ops: Vec<Op>,
}

impl View {
    /// The operations before the very first sync: an empty document. A missing document has no instant, and there may have been
    /// others since the read, with greater tokens. So grants are made only in place of an existing document, which has the
    /// number of its write.
    pub(super) fn create(
        &self,
        place: &Place,
        sync: &SyncRequest,
        id: Option<&str>,
        nonce: Nonce<'_>,
    ) -> Result<Option<Vec<Op>>, StoreError> {
        let Some(id) = id.filter(|_| self.index == 0 && sync.begin && !sync.end) else {
            return Ok(None);
        };
        // For the session, so that an ended one leaves no document behind.
        let life = Op::lock(&place.life(sync.session), nonce().as_bytes(), id);
        let (nonce, permits) = (nonce(), PermitsDocument::of(self.model.state()));
        let text = Envelope { nonce, permits }.text(place)?;
        Ok(Some(vec![life, Op::cas(&place.document(), &text, 0)]))
    }

    /// Records that it was written, by the write `index`.
    pub(super) fn created(&mut self, index: u64) {
        (self.index, self.last) = (index, index);
        self.contents = Some(PermitsDocument::of(self.model.state()));
    }

    /// Carries out a sync of the session that Consul calls `id`; without an id there is none.
    pub(super) fn plan(
        &mut self,
        place: &Place,
        sync: &SyncRequest,
        id: Option<&str>,
        nonce: Nonce<'_>,
    ) -> Result<Plan, StoreError> {
        let session = sync.session;
        let alive = |session: Session| match (session == sync.session, self.owner(session)) {
            (_, None) => false,
            (true, Some(owner)) => sync.end || id == Some(owner),
            (false, Some(_)) => true,
        };
        let known = &self.model.state().sessions;
        let dead = known.keys().copied().filter(|&session| !alive(session));
        let dead: Vec<_> = dead.collect();
        let was_there = known.contains_key(&session) && !dead.contains(&session);
        dead.iter().for_each(|&session| self.model.end(session));
        let sync = SyncRequest {
            begin: sync.begin && id.is_some() && !dead.contains(&session),
            ..sync.clone()
        };
        let Outcome { reply, notify } = sync_at_version(&mut self.model, self.last << TOKENS, &sync);
        let is_there = self.model.state().sessions.contains_key(&session);
        let role = match (was_there, is_there) {
            (true, true) => Role::There,
            (false, true) => Role::Comes,
            (_, false) => Role::Gone,
        };
        let ops = self.ops(place, &sync, role, id, &notify, nonce)?;
        let comes = role == Role::Comes;
        Ok(Plan {
            reply,
            notify,
            comes,
            ops,
        })
    }

    /// The operations of a sync: none, when nothing has changed that counts.
    fn ops(
        &self,
        place: &Place,
        sync: &SyncRequest,
        role: Role,
        id: Option<&str>,
        notify: &[Session],
        nonce: Nonce<'_>,
    ) -> Result<Vec<Op>, StoreError> {
        let (session, contents) = (sync.session, PermitsDocument::of(self.model.state()));
        let empty = self.model.state().sessions.is_empty();
        let before = self.contents.clone().map(|mut before| {
            before.apply_acks(sync);
            before
        });
        let mut ops = Vec::new();
        match (role, id) {
            (Role::Comes, Some(id)) => {
                let nonce = nonce();
                ops.push(Op::lock(&place.life(session), nonce.as_bytes(), id));
            }
            (Role::There, Some(id)) => ops.push(Op::check_session(&place.life(session), id)),
            _ if sync.end && self.owner(session).is_some() => ops.push(Op::delete(&place.life(session))),
            _ => {}
        }
        let same = match &before {
            Some(before) => *before == contents,
            None => empty,
        };
        // An earlier sync may still arrive: it does nothing if the document is another one then.
        let revokes = role == Role::There && (sync.limit.is_some() || !sync.withdrawn.is_empty());
        // A process created it, and went before there was anything in it.
        let forlorn = sync.end && empty && self.index > 0;
        if same && !revokes && !forlorn {
            // Reading shows the end of the session.
            ops.retain(|_| sync.end);
            return Ok(ops);
        }
        ops.extend(self.notifications(place, notify.iter().take(MOST_NOTIFIED), nonce));
        if empty {
            ops.push(Op::delete_cas(&place.document(), self.index));
            return Ok(ops);
        }
        let (nonce, permits) = (nonce(), contents);
        let text = Envelope { nonce, permits }.text(place)?;
        ops.push(Op::cas(&place.document(), &text, self.index));
        Ok(ops)
    }

    /// The operations that wake these sessions, if they live.
    pub(super) fn notifications<'a>(
        &self,
        place: &Place,
        notify: impl Iterator<Item = &'a Session>,
        nonce: Nonce<'_>,
    ) -> Vec<Op> {
        let notify = notify.filter_map(|&session| Some((place.life(session), self.owner(session)?)));
        let notification = |(life, owner): (String, &str)| {
            let nonce = nonce();
            [Op::check_session(&life, owner), Op::set(&life, nonce.as_bytes())]
        };
        notify.flat_map(notification).collect()
    }
}
