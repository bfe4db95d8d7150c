//! Permits in a document.
//!
//! Keys of a limiter, in its folder:
//! - `holders`: the document, the reference's own state, and a number that is never the same twice;
//! - `by/<session>`: one for each session, locked by it. Consul deletes it with the session, and so it is seen who is gone.
//!
//! A step reads both at one instant, ends those in the document who are gone, does what the reference does, and writes the
//! document if it is still the one that was read, and if its own session lives. In the same transaction it writes to the keys of
//! those to whom it granted something, if they live. If any of it does not hold, it reads again.

use super::agent::{Agent, Entry, MOST_OPS, Op};
use super::seats::Seat;
use super::{Consul, Inner, Keeping};
use crate::remote::backend::{Backend, Reply, Rule, Session, Step, StoreError};
use crate::remote::book::{Outcome, Permits, Sheet};
use crate::remote::error::RemoteError;
use crate::remote::key::Key;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;

/// A transaction is at most 512 KiB long, and what it writes grows by a third on its way.
const LONGEST: usize = 320 * 1024;
/// Who is told in the transaction itself: each takes two operations, and there are two more.
const MOST_TOLD: usize = (MOST_OPS - 2) / 2;
/// Sessions with one of so many first places look whether anybody is gone. The others do when they renew.
const LOOKOUTS: usize = 3;
/// A write of the store has room for so many tokens: a document has not.
const TOKENS: u32 = 16;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    /// Never the same twice: Consul takes a write of what is there for none.
    nonce: String,
    permits: Sheet,
}

/// What was read at one instant.
struct Seen {
    /// Zero when there is no document.
    index: u64,
    book: Permits,
    /// As the document has it.
    sheet: Option<Sheet>,
    /// The keys of the sessions, by the names of these.
    lives: HashMap<String, Entry>,
    /// The last write that is known.
    last: u64,
}

/// Where the keys of a limiter are.
struct Place(String);

impl Place {
    fn document(&self) -> String {
        format!("{}holders", self.0)
    }

    fn life(&self, session: Session) -> String {
        format!("{}by/{session}", self.0)
    }

    async fn read(&self, agent: &Agent, limit: u64) -> Result<Seen, StoreError> {
        let (mut document, mut lives) = (None, HashMap::new());
        let (entries, last) = agent.list(&self.0).await?;
        for entry in entries {
            match entry.key.strip_prefix(&self.0) {
                Some("holders") => document = Some(entry),
                Some(key) => {
                    if let Some(name) = key.strip_prefix("by/") {
                        lives.insert(name.to_owned(), entry);
                    }
                }
                None => {}
            }
        }
        let Some(document) = document else {
            let (index, sheet, book) = (0, None, Permits::new(limit, 0));
            return Ok(Seen {
                index,
                book,
                sheet,
                lives,
                last,
            });
        };
        let other = || StoreError::Refused {
            why: format!("{} is no document of permits", self.document()).into(),
        };
        let read: Document = serde_json::from_slice(&document.value).map_err(|_| other())?;
        let book = Permits::of_sheet(&read.permits).ok_or_else(other)?;
        let (index, sheet) = (document.index, Some(read.permits));
        Ok(Seen {
            index,
            book,
            sheet,
            lives,
            last,
        })
    }
}

impl Seen {
    /// Who locks the key of the session: Consul's name of it.
    fn owner(&self, session: Session) -> Option<&str> {
        self.lives.get(&session.to_string())?.session.as_deref()
    }
}

/// What a session is to the document that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// It is in it, and is to stay.
    There,
    /// It is not, and is to be.
    Comes,
    /// It is not to be in it.
    Gone,
}

impl Keeping for Consul {
    fn inner(&self) -> &Inner {
        &self.0
    }

    async fn attempt(
        &self,
        folder: &str,
        limit: u64,
        step: &Step,
        seat: Option<&Seat>,
    ) -> Result<Option<Reply>, StoreError> {
        let (inner, place) = (&*self.0, &Place(folder.to_owned()));
        let session = step.session;
        let mut seen = place.read(&inner.agent, limit).await?;
        // Ours is another one than the one that is known by this name, or has ended.
        let ours = seat.filter(|seat| !seat.is_lost());
        let alive = |session: Session| match (session == step.session, seen.owner(session)) {
            (_, None) => false,
            (true, Some(owner)) => step.end || ours.is_some_and(|seat| *seat.id == *owner),
            (false, Some(_)) => true,
        };
        let dead: Vec<_> = seen.book.sessions().filter(|&session| !alive(session)).collect();
        let was_there = seen.book.sessions().any(|known| known == session) && !dead.contains(&session);
        seen.book.bury(&dead);
        let step = Step {
            begin: step.begin && ours.is_some() && !dead.contains(&session),
            ..step.clone()
        };
        let version = seen.last << TOKENS;
        let Outcome { mut reply, told } = seen.book.step_of_version(version, &step);
        let is_there = seen.book.sessions().any(|known| known == session);
        let role = match (was_there, is_there) {
            (true, true) => Role::There,
            (false, true) => Role::Comes,
            (_, false) => Role::Gone,
        };
        let ops = self.ops(place, &seen, &step, role, seat, &told)?;
        let mut life = seen.lives.get(&session.to_string()).map_or(0, |entry| entry.index);
        if !ops.is_empty() {
            let Some(written) = inner.agent.change(&ops).await? else {
                return Ok(None);
            };
            if role == Role::Comes {
                life = written;
            }
            self.tell(place, &seen, told.get(MOST_TOLD..).unwrap_or_default()).await;
        }
        if let (true, Some(seat)) = (reply.alive, ours) {
            reply.again = seen
                .book
                .is_near(session, LOOKOUTS)
                .then(|| step.ttl / 20 + inner.seats.part_of(step.ttl / 20));
            if seen.book.wants_news(session) {
                seat.watch(&inner.agent, place.life(session), false, life, step.ttl);
            }
        }
        Ok(Some(reply))
    }
}

impl Consul {
    /// What is to be written: nothing, when nothing has changed that counts.
    fn ops(
        &self,
        place: &Place,
        seen: &Seen,
        step: &Step,
        role: Role,
        seat: Option<&Seat>,
        told: &[Session],
    ) -> Result<Vec<Op>, StoreError> {
        let (session, sheet) = (step.session, seen.book.to_sheet());
        let empty = seen.book.is_empty();
        let before = seen.sheet.clone().map(|mut before| {
            before.heard(step);
            before
        });
        let mut ops = Vec::new();
        match (role, seat) {
            (Role::Comes, Some(seat)) => {
                let nonce = self.0.seats.nonce();
                ops.push(Op::lock(&place.life(session), nonce.as_bytes(), &seat.id));
            }
            (Role::There, Some(seat)) => ops.push(Op::check_session(&place.life(session), &seat.id)),
            _ if step.end && seen.owner(session).is_some() => ops.push(Op::delete(&place.life(session))),
            _ => {}
        }
        let same = match &before {
            Some(before) => *before == sheet,
            None => empty,
        };
        if same {
            // What is known of the session is known by reading.
            ops.retain(|_| step.end);
            return Ok(ops);
        }
        ops.extend(self.tells(place, seen, told.iter().take(MOST_TOLD)));
        if empty {
            ops.push(Op::delete_cas(&place.document(), seen.index));
            return Ok(ops);
        }
        let (nonce, permits) = (self.0.seats.nonce(), sheet);
        let document = Document { nonce, permits };
        let text = serde_json::to_vec(&document).map_err(|error| StoreError::Refused {
            why: error.to_string().into(),
        })?;
        if text.len() > LONGEST {
            let why = format!(
                "{} would be {} bytes long, and {LONGEST} are allowed",
                place.document(),
                text.len()
            );
            return Err(StoreError::Refused { why: why.into() });
        }
        ops.push(Op::cas(&place.document(), &text, seen.index));
        Ok(ops)
    }

    /// Wakes these, if they live.
    fn tells<'a>(&self, place: &Place, seen: &Seen, told: impl Iterator<Item = &'a Session>) -> Vec<Op> {
        let told = told.filter_map(|&session| Some((place.life(session), seen.owner(session)?)));
        let tell = |(life, owner): (String, &str)| {
            let nonce = self.0.seats.nonce();
            [Op::check_session(&life, owner), Op::set(&life, nonce.as_bytes())]
        };
        told.flat_map(tell).collect()
    }

    /// Wakes those for whom there was no room. Who is not woken, since somebody has gone, finds out with its next renewal.
    async fn tell(&self, place: &Place, seen: &Seen, told: &[Session]) {
        for some in told.chunks(MOST_TOLD) {
            let ops = self.tells(place, seen, some.iter());
            let _ = self.0.agent.change(&ops).await;
        }
    }
}

impl Backend for Consul {
    fn supports(&self, rule: &Rule, ttl: Duration) -> Result<(), RemoteError> {
        super::supports(rule, ttl, "Consul with a document of holders")
    }

    async fn step(&self, key: &Key, rule: &Rule, step: &Step) -> Result<Reply, StoreError> {
        super::step(self, key, rule, step).await
    }

    async fn news(&self, key: &Key, session: Session) {
        self.0.seats.news(key, session).await;
    }

    fn leave(&self, key: &Key, session: Session) {
        self.0.seats.remove(key, session);
    }
}
