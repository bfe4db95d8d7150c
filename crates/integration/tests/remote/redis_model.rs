//! The scripts in Redis are another copy of the model. Both carry out the same syncs, at the instants of the server.
//!
//! A script writes down its instant. A session with a long lease, or a rule that was changed, keeps a key for a whole history.

use crate::postgres_model::{Random, RandomClient, SESSIONS, plain};
use crate::redis::{Redis as Program, bulk};
use crate::rig::server::Store as _;
use crate::store::{key, server, store, times};
use std::fmt::Debug;
use std::time::Duration;
use tollgate::ManualClock;
use tollgate::remote::model::segment;
use tollgate::remote::{Backend, Key, Memory, Request, Rule, Session, StoreError, SyncReply, SyncRequest};
use tollgate_stores::Redis;

const HISTORIES: u64 = 30;
const STEPS: u64 = 100;
const LONG: Duration = Duration::from_secs(10);

/// A reply; of rates and windows without the number of sessions, which Redis does not count, without a mark that concerns rules
/// which were never set for all, and without the rule for a session that has ended.
fn compared(rule: &Rule, reply: &SyncReply) -> impl PartialEq + Debug {
    let mut reply = plain(reply);
    if !matches!(rule, Rule::Permits { .. }) {
        (reply.0.usage.sessions, reply.0.differs) = (0, false);
        reply.1 = reply.1.filter(|_| reply.0.alive);
    }
    reply
}

/// Both stores: the model's clock is set to the instant of the script.
struct Both {
    redis: Redis,
    clock: ManualClock,
    memory: Memory,
    key: Key,
    rule: Rule,
    /// Reads the instant.
    read: String,
}

impl Both {
    /// A key that grants, with a session that keeps it.
    async fn new(rule: Rule) -> Self {
        let (kind, instant) = match rule {
            Rule::Permits { .. } => ("permits", ""),
            Rule::Window { .. } => ("window", "now"),
            _ => ("rate", "at"),
        };
        loop {
            let (redis, clock, key) = (store(), ManualClock::new(), key());
            let session = Session {
                client: SESSIONS,
                number: 1,
            };
            let mut keeper = SyncRequest::first(session, LONG);
            keeper.seq = 1;
            let (id, need, want, queue) = (1, 1, 1, false);
            keeper.requests.push(Request { id, need, want, queue });
            keeper.change = Some(rule).filter(|rule| !matches!(rule, Rule::Permits { .. }));
            let reply = redis.sync(&key, &rule, &keeper).await.expect("a reply");
            if reply.grants.is_empty() {
                // A server that was just started may not know other leases.
                keeper.end = true;
                redis.sync(&key, &rule, &keeper).await.expect("a reply");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
            let names = Program.keys(server()).expect("a server that answers");
            let suffix = format!("}}:{kind}:state");
            let is_ours = |name: &&String| name.contains(&format!("{{{key}}}")) && name.ends_with(&suffix);
            let name = names.iter().find(is_ours).expect("it is kept");
            let read = match rule {
                Rule::Permits { .. } => {
                    let state = "struct.unpack('ddddd', redis.call('HGET', KEYS[1], 'state'))";
                    format!("EVAL \"return string.format('%.0f', (select(5, {state})))\" 1 {name}")
                }
                _ => format!("HGET {name} {instant}"),
            };
            let memory = Memory::new(&clock);
            let both = Self {
                redis,
                clock,
                memory,
                key,
                rule,
                read,
            };
            let begin = both.instant().expect("the key is kept");
            if let Rule::Window { length, .. } = rule {
                // Segments begin at multiples of their length; those of the model, when the key becomes known.
                let segment = segment(length);
                both.clock.advance(Duration::from_micros(begin / segment * segment));
                let first = SyncRequest::first(session, LONG);
                let unheard = SyncRequest { seq: 0, ..first };
                both.memory.sync(&both.key, &rule, &unheard).await.expect("a reply");
            }
            if both.advance() {
                let known = both.memory.sync(&both.key, &rule, &keeper).await.expect("a reply");
                assert_eq!(compared(&rule, &known), compared(&rule, &reply));
                return both;
            }
        }
    }

    /// The instant of the latest script, in microseconds. `None` if the key has gone: no one kept it for so long.
    fn instant(&self) -> Option<u64> {
        let micros = bulk(server(), &self.read).ok()?;
        Some(micros.parse().expect("microseconds"))
    }

    /// Goes on to that instant, if the key is there.
    fn advance(&self) -> bool {
        let Some(now) = self.instant().map(Duration::from_micros) else {
            return false;
        };
        let before = self.clock.elapsed();
        assert!(now >= before, "the server's clock goes on");
        self.clock.advance(now - before);
        true
    }

    /// Both replies, which are the same, if the key is still there.
    async fn sync(&self, own: &Rule, sync: &SyncRequest, told: &str) -> Option<Result<SyncReply, StoreError>> {
        let other = self.redis.sync(&self.key, own, sync).await;
        if other.is_ok() && !self.advance() {
            return None;
        }
        let one = self.memory.sync(&self.key, own, sync).await;
        match (&one, &other) {
            (Ok(one), Ok(other)) => assert_eq!(compared(own, one), compared(own, other), "{told}: {sync:#?}"),
            (Err(StoreError::Refused { .. }), Err(StoreError::Refused { .. })) => {}
            _ => panic!("{told}: {one:?}, {other:?}: {sync:#?}"),
        }
        Some(one)
    }
}

/// Histories of this kind of limiter, with rules drawn by `rule`, and leases of sessions that end by themselves or not.
async fn agree(ttls: [u64; 4], rule: impl Fn(&mut Random) -> Rule) {
    let mut granted = 0;
    for history in 0..HISTORIES * times() {
        let mut random = Random(history * 2 + 1);
        let both = Both::new(rule(&mut random)).await;
        let mut clients: Vec<_> = (0..SESSIONS)
            .map(|client| RandomClient::new(client, Duration::from_millis(ttls[random.below(4) as usize])))
            .collect();
        for step in 0..STEPS {
            if random.one_in(8) {
                // The server's time passes by itself.
                tokio::time::sleep(Duration::from_millis(random.below(6))).await;
            }
            let client = &mut clients[random.below(SESSIONS) as usize];
            let seen = client.next.seen;
            client.change(&mut random, &rule);
            if !matches!(both.rule, Rule::Permits { .. }) {
                // A client of a rate asks for one grant at a time, once it has seen the one before.
                let last = client.tokens.last().copied().unwrap_or(0);
                let asks = client.next.requests.iter().any(|request| request.id > 0);
                client.next.seen = if asks {
                    last
                } else {
                    client.next.seen.min(last).max(seen)
                };
                client.next.requests.truncate(1);
                client.next.requests.retain(|request| request.id > 0);
            }
            let own = if random.one_in(3) { rule(&mut random) } else { both.rule };
            let told = format!("history {history}, step {step}, {own:?}");
            match both.sync(&own, &client.next, &told).await {
                Some(Ok(reply)) => {
                    granted += reply.grants.len();
                    client.read(&reply);
                }
                Some(Err(_)) => {}
                None => break,
            }
        }
    }
    assert!(granted > 100, "{granted}");
}

#[tokio::test]
async fn permits_are_those_of_the_model() {
    agree([1, 4, 20, 5_000], |random| Rule::Permits {
        limit: 1 + random.below(6),
    })
    .await;
}

#[tokio::test]
async fn rates_are_those_of_the_model() {
    // Parts of a token that are exact in a double. The script rounds finer ones up.
    let quotas = [
        "1000/s burst 4",
        "7000/3s burst 9",
        "300/s burst 6",
        "1/2s burst 5",
        "1000003/7s burst 3",
    ];
    let rule = |random: &mut Random| Rule::Rate {
        quota: quotas[random.below(5) as usize].parse().expect("a quota"),
    };
    agree([60_000; 4], rule).await;
}

#[tokio::test]
async fn windows_are_those_of_the_model() {
    let rule = |random: &mut Random| {
        let limit = 1 + random.below(6);
        let millis = if random.one_in(12) { 7 } else { 64 };
        Rule::Window {
            limit,
            length: Duration::from_millis(millis),
        }
    };
    agree([60_000; 4], rule).await;
}

/// Given a waiter that needs all of a window, and a window whose units have left, when nothing is granted, then the next request waits
/// for that waiter and not for the segment of the grant.
#[tokio::test]
async fn a_grant_of_nothing_delays_no_request_of_a_window() {
    let length = Duration::from_millis(64);
    let rule = Rule::Window { limit: 6, length };
    let both = Both::new(rule).await;
    let ask = async |client, need, queue| {
        let client = SESSIONS + client;
        let mut sync = SyncRequest::first(Session { client, number: 1 }, LONG);
        let (id, want) = (1, need);
        sync.seq = 1;
        sync.requests.push(Request { id, need, want, queue });
        let reply = both.sync(&rule, &sync, "by hand").await.expect("the key is kept");
        reply.expect("a reply")
    };
    assert_eq!(ask(1, 5, false).await.grants.len(), 1);
    assert_eq!(ask(2, 6, true).await.usage.waiting, 1);
    tokio::time::sleep(2 * length).await;
    assert_eq!(ask(3, 0, false).await.grants.len(), 1);
    assert_eq!(ask(4, 1, false).await.again, Some(Duration::from_millis(1)));
}
