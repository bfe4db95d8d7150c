//! Syncs that read and write a document in any order, over keys that behave as Consul's do.

use super::super::sessions::ConsulSessions;
use super::view::{Place, View};
use crate::consul::api::Op;
use crate::consul::tests::Keys;
use std::time::Duration;
use tollgate::remote::{Request, Session, SyncReply, SyncRequest};

const LIMIT: u64 = 3;

struct Client {
    id: String,
    sync: SyncRequest,
    consul_sessions: ConsulSessions,
}

impl Client {
    fn new(number: u64) -> Self {
        let session = Session {
            client: number,
            number: 1,
        };
        let sync = SyncRequest {
            seq: 0,
            ..SyncRequest::first(session, Duration::from_secs(1))
        };
        let id = format!("session-{number}");
        let consul_sessions = ConsulSessions::default();
        Self {
            id,
            sync,
            consul_sessions,
        }
    }

    /// Changes the sync, and reads: the operations, and the reply if they succeed; none when it has to read again.
    fn read(&mut self, keys: &Keys, say: impl FnOnce(&mut SyncRequest)) -> (Option<SyncReply>, Vec<Op>) {
        self.sync.seq += 1;
        say(&mut self.sync);
        let (place, nonce) = (Place(String::new()), &|| self.consul_sessions.nonce());
        let mut view = View::of(&place, keys.list(), keys.index, LIMIT).unwrap();
        if let Some(ops) = view.create(&place, &self.sync, Some(&self.id), nonce).unwrap() {
            return (None, ops);
        }
        let plan = view.plan(&place, &self.sync, Some(&self.id), nonce).unwrap();
        (Some(plan.reply), plan.ops)
    }

    /// Changes the sync, and repeats it until it succeeds.
    fn say(&mut self, keys: &mut Keys, say: impl FnOnce(&mut SyncRequest)) -> SyncReply {
        let (mut reply, mut ops) = self.read(keys, say);
        let reply = loop {
            let holds = ops.is_empty() || keys.change(&ops).is_some();
            match reply.filter(|_| holds) {
                Some(reply) => break reply,
                None => (reply, ops) = self.read(keys, |_| {}),
            }
        };
        self.sync.begin = false;
        self.sync.requests.clear();
        self.sync.withdrawn.clear();
        self.sync.limit = None;
        reply
    }
}

fn request(id: u64, need: u64) -> impl FnOnce(&mut SyncRequest) {
    let (want, queue) = (need, true);
    move |sync| sync.requests.push(Request { id, need, want, queue })
}

/// A limit that was set, and set back before the first was carried out, and a request that was withdrawn: the first comes
/// later.
#[test]
fn a_late_sync_does_nothing_even_if_the_next_one_changed_nothing() {
    let mut keys = Keys::default();
    let mut client = Client::new(1);
    client.say(&mut keys, request(1, 1));
    let (_, late) = client.read(&keys, |sync| sync.limit = Some(9));
    client.say(&mut keys, |sync| sync.limit = Some(LIMIT));
    assert_eq!(keys.change(&late), None);
    let (_, late) = client.read(&keys, request(2, 1));
    client.say(&mut keys, |sync| {
        sync.requests.clear();
        sync.withdrawn.push(2);
    });
    assert_eq!(keys.change(&late), None);
    // An empty sync writes nothing.
    assert!(client.read(&keys, |_| {}).1.is_empty());
}

/// There was no document when it read, and there is none when it writes, but others had one in between.
#[test]
fn tokens_grow_across_documents_also_for_a_session_that_read_before_both() {
    let mut keys = Keys::default();
    let (mut one, mut late) = (Client::new(1), Client::new(2));
    let (_, early) = late.read(&keys, request(1, 1));
    let first = one.say(&mut keys, request(1, 1)).grants[0].token;
    let second = one.say(&mut keys, request(2, 1)).grants[1].token;
    assert!(second > first);
    one.say(&mut keys, |sync| sync.end = true);
    assert_eq!(keys.list(), []);
    keys.change(&early);
    let reply = late.say(&mut keys, |_| {});
    assert!(reply.grants[0].token > second, "{reply:?} after {second}");
    late.say(&mut keys, |sync| sync.end = true);
    assert_eq!(keys.list(), []);
}

/// Its key has gone with its session, and its units and requests go with that.
#[test]
fn dead_sessions_hold_nothing() {
    let mut keys = Keys::default();
    let (mut dies, mut other) = (Client::new(1), Client::new(2));
    dies.say(&mut keys, request(1, LIMIT));
    dies.say(&mut keys, request(2, LIMIT));
    assert_eq!(other.say(&mut keys, request(1, 1)).grants, []);
    keys.die(&dies.id);
    let reply = other.say(&mut keys, |_| {});
    assert_eq!((reply.grants.len(), reply.usage.in_use, reply.usage.waiting), (1, 1, 0));
}

/// An end deletes the document that another process has made, which did not come.
#[test]
fn an_unused_document_goes_with_the_next_end() {
    let mut keys = Keys::default();
    let (mut came, mut ends) = (Client::new(1), Client::new(2));
    let (_, ops) = came.read(&keys, request(1, 1));
    keys.change(&ops).unwrap();
    keys.die(&came.id);
    assert_eq!(keys.list().len(), 1);
    ends.say(&mut keys, |sync| sync.end = true);
    assert_eq!(keys.list(), []);
}

/// A document does not see slots, and would grant their units again.
#[test]
fn other_keys_are_refused() {
    for other in ["at/limit", "at/000", "something"] {
        let mut keys = Keys::default();
        keys.change(&[Op::cas(other, b"{}", 0)]).unwrap();
        let refused = View::of(&Place(String::new()), keys.list(), keys.index, LIMIT).map(drop);
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(other), "{refused}");
    }
}
