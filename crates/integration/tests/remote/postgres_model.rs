//! The functions in PostgreSQL are a second copy of the model. Both carry out the same syncs, at the same instants.

use crate::postgres::{options, raw, schema, url};
use crate::store::times;
use futures::FutureExt as _;
use std::time::Duration;
use tokio_postgres::Client;
use tollgate::ManualClock;
use tollgate::remote::model::Fill;
use tollgate::remote::{
    Backend, Key, Memory, Notification, Request, Rule, Session, StoreError, SyncReply, SyncRequest,
};
use tollgate_stores::Postgres;

pub(crate) const SESSIONS: u64 = 4;
const HISTORIES: u64 = 60;
const STEPS: u64 = 150;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}

/// Both stores, by one clock.
struct Both {
    clock: ManualClock,
    memory: Memory,
    postgres: Postgres,
    client: Client,
    schema: String,
}

impl Both {
    async fn new() -> Self {
        let (schema, clock) = (schema(), ManualClock::new());
        // Far from the beginning of time, where a server may not know earlier leases.
        clock.advance(Duration::from_secs(1_000_000));
        let (postgres, client) = (options(&schema).connect().unwrap(), raw(&url()).await);
        // It installs everything.
        let sync = SyncRequest::first(Session { client: 0, number: 0 }, Duration::from_secs(1));
        let ended = SyncRequest { end: true, ..sync };
        postgres
            .sync(&Key::new("none").unwrap(), &Rule::Permits { limit: 1 }, &ended)
            .await
            .unwrap();
        let find = format!(
            "SELECT proname FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace AND proname LIKE 'micros%'"
        );
        let micros: String = client.query_one(&find, &[]).await.unwrap().get(0);
        let time = format!(
            "DELETE FROM {schema}.state_v1; CREATE TABLE {schema}.clock (at bigint); INSERT INTO {schema}.clock VALUES (0);
             CREATE OR REPLACE FUNCTION {schema}.{micros}() RETURNS bigint LANGUAGE sql AS 'SELECT at FROM {schema}.clock'"
        );
        client.batch_execute(&time).await.unwrap();
        let memory = Memory::new(&clock);
        let both = Self {
            clock,
            memory,
            postgres,
            client,
            schema,
        };
        both.advance(Duration::ZERO).await;
        both
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
        let now = self.clock.elapsed().as_micros();
        let set = format!("UPDATE {}.clock SET at = {now}", self.schema);
        self.client.batch_execute(&set).await.unwrap();
        // Keys that are as good as new go.
        self.memory.keys();
    }

    /// Both replies, which are the same, and the same notifications.
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest, told: &str) -> Result<SyncReply, StoreError> {
        let one = self.memory.sync(key, rule, sync).await;
        let other = self.postgres.sync(key, rule, sync).await;
        match (&one, &other) {
            (Ok(one), Ok(other)) => assert_eq!(plain(one), plain(other), "{told}: {sync:#?}"),
            (Err(StoreError::Refused { .. }), Err(StoreError::Refused { .. })) => {}
            _ => panic!("{told}: {one:?}, {other:?}: {sync:#?}"),
        }
        for client in 0..SESSIONS {
            let session = Session { client, number: 1 };
            let heard = self.memory.notified(key, session).now_or_never();
            let told = format!("{told}: {session} {sync:#?}");
            assert_eq!(heard, self.postgres.notified(key, session).now_or_never(), "{told}");
            if heard.is_some() {
                let said = self.memory.notification(key, session);
                let news = self.postgres.notification(key, session);
                match (&said, &news) {
                    (Notification::Reply(one), Notification::Reply(other)) => {
                        // The time of the next sync is left out.
                        let one = SyncReply {
                            again: None,
                            ..plain(one).0
                        };
                        assert_eq!(one, plain(other).0, "{told}");
                    }
                    _ => assert_eq!(said, news, "{told}"),
                }
            }
        }
        one
    }
}

/// A reply with the rule in whole numbers: quotas of the same numbers are the same.
pub(crate) fn plain(reply: &SyncReply) -> (SyncReply, Option<(u64, Option<Fill>)>) {
    let mut reply = reply.clone();
    // A row without grants does not know those of the rows before it.
    if reply.usage.in_use == 0 {
        reply.floor = 0;
    }
    let rule = reply.rule.take().map(|(edition, rule)| match rule {
        Rule::Rate { quota } => (edition, Fill::of(&quota)),
        Rule::Window { limit: price, .. } => (
            edition,
            Some(Fill {
                price,
                gain: 0,
                brim: 0,
            }),
        ),
        _ => (edition, None),
    });
    (reply, rule)
}

/// A client that reports whatever it likes.
pub(crate) struct RandomClient {
    pub(crate) next: SyncRequest,
    request: u64,
    granted: u64,
    pub(crate) tokens: Vec<u64>,
}

impl RandomClient {
    pub(crate) fn new(client: u64, ttl: Duration) -> Self {
        let session = Session { client, number: 1 };
        Self {
            next: SyncRequest::first(session, ttl),
            request: 0,
            granted: 0,
            tokens: vec![0],
        }
    }

    pub(crate) fn change(&mut self, random: &mut Random, change: impl Fn(&mut Random) -> Rule) {
        let next = &mut self.next;
        next.begin = !random.one_in(4);
        next.seq += [0, 1, 1, 1, 1, 2][random.below(6) as usize];
        next.acked = if random.one_in(30) { next.seq } else { 0 };
        next.returned = random.below(self.granted + 2);
        next.charged += if random.one_in(5) { random.below(4) } else { 0 };
        next.seen = self.tokens[random.below(self.tokens.len() as u64) as usize];
        next.seen += if random.one_in(60) { 1 << 40 } else { 0 };
        let oldest = self.tokens[random.below(self.tokens.len() as u64) as usize];
        // Only its own session holds units of a token.
        next.oldest = (oldest > 0).then_some(oldest);
        next.keeps = random.one_in(3);
        next.end = random.one_in(12);
        next.limit = random.one_in(10).then(|| random.below(7));
        next.change = random.one_in(8).then(|| change(random));
        next.edition = if random.one_in(6) { 0 } else { next.edition };
        next.requests.clear();
        for _ in 0..random.below(3) {
            self.request += random.below(2);
            let (id, need, want) = (self.request, random.below(5), random.below(7));
            let queue = random.one_in(2);
            next.requests.push(Request { id, need, want, queue });
        }
        next.withdrawn = (0..random.below(3)).map(|_| random.below(self.request + 1)).collect();
    }

    pub(crate) fn read(&mut self, reply: &SyncReply) {
        for grant in &reply.grants {
            if !self.tokens.contains(&grant.token) {
                self.tokens.push(grant.token);
                self.granted += grant.units;
            }
        }
        if let Some((edition, _)) = reply.rule {
            self.next.edition = edition;
        }
    }
}

/// Histories of this kind of limiter, with rules drawn by `rule`.
async fn agree(name: &str, rule: impl Fn(&mut Random) -> Rule) {
    let both = Both::new().await;
    let mut granted = 0;
    for history in 0..HISTORIES * times() {
        let mut random = Random(history * 2 + 1);
        let (key, first) = (Key::new(name).unwrap(), rule(&mut random));
        let ttls = [1, 20, 300, 5_000];
        let mut clients: Vec<_> = (0..SESSIONS)
            .map(|client| RandomClient::new(client, Duration::from_millis(ttls[random.below(4) as usize])))
            .collect();
        for step in 0..STEPS {
            let by = [0, 1, 900, 20_000, 400_000][random.below(5) as usize] * random.below(20);
            both.advance(Duration::from_micros(by)).await;
            let client = &mut clients[random.below(SESSIONS) as usize];
            client.change(&mut random, &rule);
            let own = if random.one_in(3) { rule(&mut random) } else { first };
            let told = format!("history {history}, step {step}, {own:?}");
            if let Ok(reply) = both.sync(&key, &own, &client.next, &told).await {
                granted += reply.grants.len();
                client.read(&reply);
            }
        }
        // Everything has gone before the next one.
        both.advance(Duration::from_secs(200_000)).await;
    }
    assert!(granted > 100, "{granted}");
}

#[tokio::test]
async fn permits_are_those_of_the_model() {
    agree("permits", |random| Rule::Permits {
        limit: 1 + random.below(6),
    })
    .await;
}

#[tokio::test]
async fn rates_are_those_of_the_model() {
    let quotas = [
        "1000/s burst 4",
        "7000/3s burst 9",
        "3/s burst 6",
        "1/h burst 5",
        "1000003/7s burst 3",
    ];
    let rule = |random: &mut Random| Rule::Rate {
        quota: quotas[random.below(5) as usize].parse().unwrap(),
    };
    agree("rates", rule).await;
}

#[tokio::test]
async fn windows_are_those_of_the_model() {
    let rule = |random: &mut Random| {
        let limit = 1 + random.below(6);
        let millis = if random.one_in(12) { 7 } else { 640 };
        Rule::Window {
            limit,
            length: Duration::from_millis(millis),
        }
    };
    agree("windows", rule).await;
}
