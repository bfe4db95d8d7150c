//! The permits of a key as a document.
//!
//! Sessions do not expire by themselves in it: they end when the store no longer knows them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tollgate::remote::model::{Held, Outcome, Permits, PermitsState, Queued};
use tollgate::remote::{Grant, Session, SyncRequest};

/// The document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PermitsDocument {
    limit: u64,
    token: u64,
    next_place: u64,
    sessions: BTreeMap<String, SessionEntry>,
    /// By place: the session, its request, its need and want.
    queue: BTreeMap<u64, (String, u64, u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionEntry {
    seq: u64,
    granted: u64,
    returned: u64,
    asked: u64,
    keeps: bool,
    /// The token of the oldest grant with units held; zero for none.
    oldest: u64,
    /// Grants that the client has not seen: the request, the units, the token.
    grants: Vec<(u64, u64, u64)>,
}

impl PermitsDocument {
    pub(crate) fn of(state: &PermitsState) -> Self {
        let session_entry = |held: &Held| SessionEntry {
            seq: held.seq,
            granted: held.granted,
            returned: held.returned,
            asked: held.asked,
            keeps: held.keeps,
            oldest: held.oldest.unwrap_or(0),
            grants: held
                .grants
                .iter()
                .map(|grant| (grant.request, grant.units, grant.token))
                .collect(),
        };
        let queued = |queued: &Queued| (queued.session.to_string(), queued.request, queued.need, queued.want);
        Self {
            limit: state.limit,
            token: state.token,
            next_place: state.next_place,
            sessions: state
                .sessions
                .iter()
                .map(|(session, held)| (session.to_string(), session_entry(held)))
                .collect(),
            queue: state
                .queue
                .iter()
                .map(|(&place, entry)| (place, queued(entry)))
                .collect(),
        }
    }

    /// Returns `None` for a contradictory document, or one with numbers beyond any real count.
    pub(crate) fn permits(&self) -> Option<Permits> {
        let counts = self.sessions.values().flat_map(|entry| [entry.granted, entry.asked]);
        let requests = self
            .queue
            .values()
            .flat_map(|&(_, request, need, want)| [request, need, want]);
        let mut numbers = [self.limit, self.token, self.next_place]
            .into_iter()
            .chain(counts)
            .chain(requests);
        if numbers.any(|number| number > FARTHEST) {
            return None;
        }
        let sessions = self.sessions.iter().map(|(name, entry)| {
            let grants = entry
                .grants
                .iter()
                .map(|&(request, units, token)| Grant { request, units, token });
            let held = Held {
                expires: NEVER,
                seq: entry.seq,
                granted: entry.granted,
                returned: entry.returned,
                asked: entry.asked,
                grants: grants.collect(),
                keeps: entry.keeps,
                oldest: Some(entry.oldest).filter(|&token| token > 0),
            };
            Some((session(name)?, held))
        });
        let queue = self.queue.iter().map(|(&place, &(ref name, request, need, want))| {
            let session = session(name)?;
            let queued = Queued {
                session,
                request,
                need,
                want,
            };
            Some((place, queued))
        });
        Permits::restore(PermitsState {
            limit: self.limit,
            token: self.token,
            next_place: self.next_place,
            sessions: sessions.collect::<Option<_>>()?,
            queue: queue.collect::<Option<_>>()?,
        })
    }

    /// Applies the changes that every sync makes, even an empty one. Documents that are equal after this need not both be
    /// written.
    pub(crate) fn apply_acks(&mut self, sync: &SyncRequest) {
        if let Some(entry) = self.sessions.get_mut(&sync.session.to_string()) {
            entry.seq = entry.seq.max(sync.seq);
            entry.grants.retain(|&(_, _, token)| token > sync.seen);
            let unseen = entry.grants.first().map(|&(_, _, token)| token);
            entry.oldest = sync.oldest.or(unseen).unwrap_or(0);
        }
    }
}

/// Carries out `sync` where sessions do not expire by themselves. `version` grows with each change of the store, and tokens are
/// at least as great. Such a store forgets nothing, and need not write a sync that changes nothing.
pub(crate) fn sync_at_version(permits: &mut Permits, version: u64, sync: &SyncRequest) -> Outcome {
    let sync = SyncRequest {
        ttl: Duration::MAX,
        acked: 0,
        ..sync.clone()
    };
    permits.sync(version, &sync)
}

/// Whether the session is among the first `sessions` in the queue, however many requests each of them has there.
pub(crate) fn is_near(permits: &Permits, session: Session, sessions: usize) -> bool {
    let mut near = BTreeSet::new();
    for queued in permits.state().queue.values() {
        near.insert(queued.session);
        if near.len() > sessions || queued.session == session {
            return near.len() <= sessions && queued.session == session;
        }
    }
    false
}

/// Whether the session waits for a grant, or keeps units that others may want.
pub(crate) fn wants_news(permits: &Permits, session: Session) -> bool {
    let state = permits.state();
    let keeps = state.sessions.get(&session).is_some_and(|held| held.keeps);
    keeps || state.queue.values().any(|queued| queued.session == session)
}

/// Parses a printed session.
fn session(name: &str) -> Option<Session> {
    let (client, number) = name.split_once('.')?;
    let client = u64::from_str_radix(client, 16).ok()?;
    let session = Session {
        client,
        number: number.parse().ok()?,
    };
    (session.to_string() == name).then_some(session)
}

const NEVER: u64 = u64::MAX;
/// Beyond any real count: sums with it still fit.
const FARTHEST: u64 = u64::MAX >> 1;

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::remote::{Request, SyncReply};

    fn sync(client: u64, seq: u64) -> SyncRequest {
        SyncRequest {
            seq,
            begin: seq == 1,
            ..SyncRequest::first(Session { client, number: 1 }, Duration::from_secs(1))
        }
    }

    fn request(client: u64, seq: u64, need: u64) -> SyncRequest {
        let (id, want, queue) = (seq, need, true);
        let requests = vec![Request { id, need, want, queue }];
        SyncRequest {
            requests,
            ..sync(client, seq)
        }
    }

    /// The same syncs, with a document between any two of them: the replies are the same, and so is the document.
    #[test]
    fn a_document_remembers_everything() {
        let mut syncs = vec![
            request(1, 1, 2),
            request(u64::MAX, 1, 2),
            request(3, 1, 1),
            request(1, 2, 1),
            sync(3, 2),
        ];
        syncs.push(SyncRequest {
            returned: 2,
            seen: 10,
            keeps: true,
            ..sync(1, 3)
        });
        syncs.push(SyncRequest {
            withdrawn: vec![2],
            limit: Some(5),
            ..sync(1, 4)
        });
        syncs.push(SyncRequest {
            end: true,
            ..sync(3, 3)
        });
        let mut kept = Permits::new(3, 7);
        let mut document = PermitsDocument::of(kept.state());
        for (version, sync) in (10..).zip(&syncs) {
            let mut read = document.permits().expect("what was written can be read");
            let (one, other) = (
                sync_at_version(&mut kept, version, sync),
                sync_at_version(&mut read, version, sync),
            );
            assert_eq!((&one.reply, &one.notify), (&other.reply, &other.notify));
            document =
                serde_json::from_str(&serde_json::to_string(&PermitsDocument::of(read.state())).unwrap()).unwrap();
            assert_eq!(document, PermitsDocument::of(kept.state()));
        }
        assert_eq!(kept.state().token, 16, "{kept:?}");
    }

    #[test]
    fn permits_of_dead_sessions_go_to_the_next_waiter() {
        let mut model = Permits::new(1, 0);
        sync_at_version(&mut model, 1, &request(1, 1, 1));
        sync_at_version(&mut model, 2, &request(2, 1, 1));
        let waits = Session { client: 2, number: 1 };
        assert!(is_near(&model, waits, 1) && wants_news(&model, waits));
        model.end(Session { client: 1, number: 1 });
        let SyncReply { grants, usage, .. } = sync_at_version(&mut model, 3, &sync(2, 2)).reply;
        assert_eq!((grants.len(), usage.sessions), (1, 1));
        assert!(!wants_news(&model, waits));
    }

    /// The requests of one session count once: it may be dead.
    #[test]
    fn nearness_in_the_queue_is_counted_by_sessions() {
        let mut model = Permits::new(1, 0);
        for (seq, client) in [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (1, 3)] {
            sync_at_version(&mut model, 1, &request(client, seq, 1));
        }
        let near = |client| is_near(&model, Session { client, number: 1 }, 2);
        assert_eq!([1, 2, 3, 4].map(near), [true, true, false, false]);
    }

    #[test]
    fn a_sync_without_news_changes_nothing_that_counts() {
        let mut model = Permits::new(1, 0);
        let token = sync_at_version(&mut model, 1, &request(1, 1, 1)).reply.grants[0].token;
        let hears = SyncRequest {
            seen: token,
            ..sync(1, 2)
        };
        let mut before = PermitsDocument::of(model.state());
        sync_at_version(&mut model, 2, &hears);
        assert_ne!(before, PermitsDocument::of(model.state()));
        before.apply_acks(&hears);
        assert_eq!(before, PermitsDocument::of(model.state()));
    }

    #[test]
    fn a_contradictory_document_is_refused() {
        let mut model = Permits::new(1, 0);
        sync_at_version(&mut model, 1, &request(1, 1, 1));
        sync_at_version(&mut model, 2, &request(2, 1, 1));
        let good = serde_json::to_string(&PermitsDocument::of(model.state())).unwrap();
        let read = |text: &str| {
            let document: Option<PermitsDocument> = serde_json::from_str(text).ok();
            document.and_then(|document| document.permits())
        };
        assert!(read(&good).is_some());
        for (from, to) in [
            ("\"returned\":0", "\"returned\":2"),
            ("0000000000000002.1\",1,1,1", "0000000000000005.1\",1,1,1"),
            ("\"next_place\":2", "\"next_place\":1"),
            ("0000000000000001.1", "1.1"),
            ("\"limit\"", "\"limits\""),
            ("\"next_place\":2", "\"next_place\":18446744073709551615"),
            ("\"token\":1", "\"token\":18446744073709551615"),
        ] {
            assert_ne!(good, good.replace(from, to), "{from} in {good}");
            assert!(read(&good.replace(from, to)).is_none(), "{from} {to}");
        }
    }
}
