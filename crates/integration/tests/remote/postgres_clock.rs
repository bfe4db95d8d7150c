//! A PostgreSQL whose clock is set back: the function that reads the clock is replaced.

use crate::clock::BACK;
use crate::postgres::{options, raw, schema, url};
use crate::raw_session::{LONG, RawSession};
use crate::store::key;
use std::time::Duration;
use tokio_postgres::Client;
use tollgate::Quota;
use tollgate::remote::{Backend, KeyLeg, Rule, Step};
use tollgate_stores::Postgres;

const SECOND: Duration = Duration::from_secs(1);
const PERMITS: Rule = Rule::Permits { limit: 1 };

/// An installed schema, and the clock of the functions there.
struct Clocked {
    schema: String,
    client: Client,
    /// The name of the function.
    micros: String,
}

impl Clocked {
    /// The clock stands far from the beginning of time.
    const START: Duration = Duration::from_secs(1_000_000);

    async fn new() -> (Self, Postgres) {
        let (schema, client) = (schema(), raw(&url()).await);
        let store = options(&schema).connect().expect("settings that can be");
        // It installs itself with the first sync.
        RawSession::new(&store, &key(), PERMITS, LONG).end().await;
        let find = format!(
            "SELECT proname FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace AND proname LIKE 'micros%'"
        );
        let micros = client.query_one(&find, &[]).await.expect("it is installed").get(0);
        // It knows no token by the real clock.
        let table = format!(
            "DELETE FROM {schema}.state_v1; CREATE TABLE {schema}.clock (at bigint); INSERT INTO {schema}.clock VALUES (0)"
        );
        client.batch_execute(&table).await.expect("a table");
        let function = format!(
            "CREATE OR REPLACE FUNCTION {schema}.{micros}() RETURNS bigint LANGUAGE sql AS 'SELECT at FROM {schema}.clock'"
        );
        client.batch_execute(&function).await.expect("a function");
        let clocked = Self { schema, client, micros };
        clocked.set(Self::START).await;
        (clocked, store)
    }

    async fn set(&self, now: Duration) {
        let set = format!("UPDATE {}.clock SET at = {}", self.schema, now.as_micros());
        self.client.batch_execute(&set).await.expect("a table");
    }

    /// Deletes the rows that are as good as none, and asserts that no row is left.
    async fn purge(&self) {
        let version = self.micros.rsplit('_').next().expect("a version");
        let purge = format!("SELECT {}.purge_{version}(100)", self.schema);
        self.client.query_one(&purge, &[]).await.expect("it is installed");
        let rows = format!("SELECT count(*) FROM {}.state_v1 WHERE kind <> 'server'", self.schema);
        let rows: i64 = self.client.query_one(&rows, &[]).await.expect("it is installed").get(0);
        assert_eq!(rows, 0);
    }
}

fn rates() -> [Rule; 2] {
    let (quota, length) = (Quota::per_second(1).burst(1), SECOND);
    [Rule::Rate { quota }, Rule::Window { limit: 1, length }]
}

/// Given a limiter whose row has gone, with its last session or after it has expired, when the clock is set back and the limiter is used again,
/// then its tokens are greater than those before.
#[tokio::test]
async fn tokens_of_a_limiter_that_had_gone_grow_after_the_clock_was_set_back() {
    for rule in [PERMITS].into_iter().chain(rates()) {
        for by in BACK {
            for ends in [true, false] {
                let ((clocked, store), key) = (Clocked::new().await, key());
                let mut one = RawSession::new(&store, &key, rule, SECOND);
                let first = one.request(1, false).await.grants[0].token;
                let later = Clocked::START + 10 * SECOND;
                clocked.set(later).await;
                if ends {
                    one.end().await;
                }
                clocked.purge().await;
                clocked.set(later - by - 10 * SECOND).await;
                let mut other = RawSession::new(&store, &key, rule, SECOND);
                let second = other.request(1, false).await.grants[0].token;
                assert!(second > first, "{rule:?}: {second} after {first}");
            }
        }
    }
}

/// Given a key, and a leg that is counted at another one, from which all was taken, when the clock is set back, then the time of both goes on from
/// where it was, and what was taken comes back.
#[tokio::test]
async fn a_drained_key_goes_on_when_the_clock_is_set_back() {
    for by in BACK {
        for rule in rates() {
            for shared in [false, true] {
                let ((clocked, store), name) = (Clocked::new().await, key());
                let mut legs = [KeyLeg::new("drained", rule), KeyLeg::new("other", rates()[0])];
                legs[1].rule = Rule::Rate {
                    quota: Quota::per_second(1_000_000),
                };
                legs[usize::from(!shared)].key = Some(key());
                let mut seq = 0;
                let mut step = async || {
                    seq += 1;
                    let mut step = Step::new(1, seq, LONG);
                    step.takes = vec![KeyLeg::units([1, 1])];
                    let reply = store.step(&name, &legs, &step).await.expect("a reply");
                    (reply.at, reply.takes[0].map_err(|refusal| refusal.after))
                };
                let at = |since: Duration| u64::try_from((Clocked::START + since).as_micros()).expect("microseconds");
                assert_eq!(step().await, (at(Duration::ZERO), Ok(())));
                let back = Clocked::START - by;
                clocked.set(back).await;
                let (now, refused) = step().await;
                let after = refused.expect_err("it is drained").expect("it comes back");
                assert_eq!(now, at(Duration::ZERO), "it goes on from where it was");
                let half = Duration::from_millis(after.as_millis() as u64 / 2);
                clocked.set(back + half).await;
                assert_eq!(step().await, (at(half), Err(Some(after - half))));
                clocked.set(back + after).await;
                assert_eq!(step().await, (at(after), Ok(())), "{rule:?}, shared {shared}");
            }
        }
    }
}

/// Given a key that has only refused for ten minutes, when the clock is set back, then at most a second of the ten minutes counts again.
#[tokio::test]
async fn time_in_which_a_key_only_refused_does_not_count_again() {
    for by in BACK {
        let ((clocked, store), name) = (Clocked::new().await, key());
        let quota = Quota::per_hour(1).burst(1);
        let legs = [KeyLeg::new("hourly", Rule::Rate { quota })];
        let mut seq = 0;
        let mut step = async || {
            seq += 1;
            let mut step = Step::new(1, seq, LONG);
            step.takes = vec![KeyLeg::units([1])];
            let reply = store.step(&name, &legs, &step).await.expect("a reply");
            (reply.at, reply.takes[0].is_ok())
        };
        assert!(step().await.1);
        let mut last = 0;
        for tenths in 1..6_000 {
            // A step each second, then some a tenth of a second apart.
            if tenths % 600 > 0 && tenths < 5_990 {
                continue;
            }
            clocked.set(Clocked::START + tenths * SECOND / 10).await;
            last = step().await.0;
        }
        clocked.set(Clocked::START + 600 * SECOND - by).await;
        let (now, taken) = step().await;
        assert!(!taken && now <= last && last - now < 1_000_000, "{last} and then {now}");
    }
}
