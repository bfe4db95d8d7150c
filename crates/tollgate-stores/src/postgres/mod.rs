//! PostgreSQL as a store. A function in the database for permits, one for rates and windows, and one for the legs of a key; each sync or step
//! is one call of it.
//!
//! | file | what it is |
//! |---|---|
//! | `install.sql` | the tables, and what the functions share |
//! | `permits.sql` | sessions with their units, and one queue |
//! | `rates.sql` | a token bucket in whole numbers, and a sliding window in segments |
//! | `steps.sql` | the legs of a key, taken from together, and its queue for permits |

mod link;
mod options;

use crate::answer::{Answer, numbers};
use crate::connect::ConnectOptions;
use crate::subscriptions::{Subscription, Subscriptions};
use link::Link;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tollgate::remote::model::{micros, random_number};
use tollgate::remote::{
    Backend, Key, KeyLeg, LegUnits, Notification, RemoteError, Rule, Session, Step, StepReply, StoreError, SyncReply,
    SyncRequest,
};

/// The most rows of limiters that one call deletes, and a tenth of the most of keys.
const PURGED: i32 = 100;
/// The least and the longest pause between two such calls, while there are rows.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

/// Limiters in PostgreSQL. A handle: clones are the same connection, which all limiters of a process can share.
///
/// Calls and notifications share one connection. It is made when it is first needed, and again when it breaks. Each sync is one
/// round trip: a call of a function that the store installs.
///
/// ```no_run
/// # use std::sync::Arc;
/// # use tollgate::remote::{Key, Remote};
/// # use tollgate_stores::Postgres;
/// # async fn connected() -> Result<(), Box<dyn std::error::Error>> {
/// let postgres = Postgres::options("postgres://gate@127.0.0.1/limits").password("secret").connect()?;
/// let reports = Arc::new(Remote::permits(Key::new("reports")?, 20).spawn(postgres)?);
/// let permit = reports.acquire_owned(1).await?;
/// assert!(!permit.is_lost());
/// # Ok(())
/// # }
/// ```
///
/// # What it needs
/// PostgreSQL 13 or later, with PL/pgSQL, and the isolation level `read committed`, which is the default. Tables and functions
/// are installed with the first connection, in a [schema](ConnectOptions::prefix). The user needs to own the schema, or the
/// right to create it:
///
/// ```text
/// CREATE ROLE gate LOGIN PASSWORD 'secret';
/// CREATE SCHEMA tollgate AUTHORIZATION gate;
/// ```
///
/// Other users of an installed schema need `USAGE` on it, and `SELECT, INSERT, UPDATE, DELETE` on its tables. A sync without a
/// right that it needs is [refused](StoreError::Refused), and the error names it.
///
/// The names of the functions carry a hash of their text, and that of the table the version of its layout. So processes with
/// different versions of this crate share limiters as long as the layout stays. Functions of former versions are left there.
///
/// # What is promised
/// A commit waits until it is on disk, and on the standbys that the server waits for. So a server that is killed and started
/// again has forgotten nothing, and grants at once. This costs the time of a flush for each sync. Without it, see
/// [`asynchronous_commit`](ConnectOptions::asynchronous_commit).
///
/// A standby that takes over may not know the last grants if it was not waited for. It has another timeline. It grants no
/// permits until a time to live after the first sync there, so that unknown leases have run out, and reports sessions as lost of
/// which it has forgotten something. The time to live is the longest that it knows of, or that of the asking process. Where others have
/// a longer one, set [`longest_ttl`](ConnectOptions::longest_ttl) in all processes. Tokens of rates that were granted last before
/// another server took over are there again. Fencing tokens continue to grow, by the server's clock.
///
/// A clock that is set back goes on from where it was: no permit is lost, no token comes early, and fencing tokens grow, also those
/// of a limiter that was gone meanwhile. One that is set forward ends the leases that it jumps over. Their holders learn it with
/// their next renewal, a third of the time to live later at most.
///
/// # Locks
/// A call that meets a locked row waits for half of the [time-out](ConnectOptions::timeout), and then fails, for this limiter alone. The calls
/// behind it, which share the connection, wait meanwhile. The sessions of this process have a `statement_timeout` and a `lock_timeout`.
/// With [`polling`](ConnectOptions::polling), where the sessions are a pooler's, they have not. A connection that does not
/// answer in time is given up, and the call that keeps it is cancelled at the server, unless its commit may be waiting for standbys. A process
/// has at most eight connections, those that were given up included.
///
/// # Size
/// A limiter is one row, with its sessions and waiting requests in it: each sync reads and writes all of it. So is a
/// [key](tollgate::remote::Remote::keyed) with its legs and the last answer to each process. Rows that are as good as none are deleted by the
/// processes that are connected, at most 100 limiters and 1,000 keys in a call. A key goes at most half of the time for which answers are
/// remembered, and a second, after that.
#[derive(Clone)]
pub struct Postgres(Arc<Inner>);

struct Inner {
    link: Link,
    longest_ttl: Duration,
    durable: bool,
    /// How often waiters ask, where notifications are not listened for.
    polling: Option<Duration>,
    channel: Arc<str>,
    subscriptions: Arc<Subscriptions>,
    /// There may be rows to be deleted.
    used: Notify,
    permits: Box<str>,
    rates: Box<str>,
    steps: Box<str>,
    purge: Box<str>,
}

/// The name of the functions' version: a hash of their text.
fn version() -> String {
    let bytes = link::SOURCES.iter().flat_map(|source| source.bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{:08x}", hash >> 32)
}

/// A number for the database, which has no larger ones.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The requests and withdrawn ids of a sync, as the functions take them.
fn requests(sync: &SyncRequest) -> (Vec<i64>, Vec<i64>) {
    let requests = sync.requests.iter().flat_map(|request| {
        let numbers = [request.id, request.need, request.want, u64::from(request.queue)];
        numbers.map(int)
    });
    (requests.collect(), sync.withdrawn.iter().copied().map(int).collect())
}

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

impl Postgres {
    /// The PostgreSQL at `address`: `postgres://user:password@host:port/database`, or `host=/run/postgresql user=gate`. Several hosts
    /// are tried in order until one takes writes.
    pub fn options(address: impl Into<Box<str>>) -> ConnectOptions<Self> {
        ConnectOptions::new(
            address.into(),
            "tollgate",
            Duration::from_millis(500),
            Default::default(),
        )
    }

    fn new(options: &ConnectOptions<Self>, link: impl FnOnce(&str, Option<&str>, Arc<Subscriptions>) -> Link) -> Self {
        let (schema, version) = (&options.prefix, version());
        let call = |name: &str, parameters: usize| -> Box<str> {
            let numbers: Vec<_> = (1..=parameters).map(|number| format!("${number}")).collect();
            format!("SELECT {schema}.{name}_{version}({})", numbers.join(",")).into()
        };
        let channel: Arc<str> = match options.own.polling {
            None => format!("tollgate_{:016x}", random_number()).into(),
            Some(_) => "".into(),
        };
        let subscriptions = Arc::<Subscriptions>::default();
        let listens = options.own.polling.is_none().then_some(&*channel);
        let inner = Arc::new(Inner {
            link: link(&version, listens, Arc::clone(&subscriptions)),
            longest_ttl: options.own.longest_ttl,
            durable: options.own.durable,
            polling: options.own.polling,
            channel,
            subscriptions,
            used: Notify::new(),
            permits: call("permits", 18),
            rates: call("rates", 17),
            steps: call("steps", 19),
            purge: call("purge", 1),
        });
        tokio::spawn(purge(Arc::clone(&inner)));
        Self(inner)
    }

    /// The name of `session` in messages.
    fn name(key: &Key, session: Session) -> String {
        format!("{key} {session}")
    }

    fn subscription(&self, key: &Key, session: Session) -> Arc<Subscription> {
        self.0.subscriptions.open(Self::name(key, session), &self.0.channel)
    }

    async fn permits(&self, key: &Key, limit: u64, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let (requests, withdrawn) = requests(sync);
        let parameters: [Parameter<'_>; 18] = [
            (&key.as_str(), Type::TEXT),
            (&int(limit), Type::INT8),
            (&sync.session.to_string(), Type::TEXT),
            (&&*self.0.channel, Type::TEXT),
            (&int(sync.seq), Type::INT8),
            (&sync.begin, Type::BOOL),
            (&int(micros(sync.ttl)), Type::INT8),
            (&int(sync.returned), Type::INT8),
            (&int(sync.seen), Type::INT8),
            (&sync.limit.map(int), Type::INT8),
            (&sync.keeps, Type::BOOL),
            (&sync.end, Type::BOOL),
            (&int(sync.acked), Type::INT8),
            (&sync.oldest.map(int), Type::INT8),
            (&requests, Type::INT8_ARRAY),
            (&withdrawn, Type::INT8_ARRAY),
            (&int(micros(self.0.longest_ttl)), Type::INT8),
            (&self.0.durable, Type::BOOL),
        ];
        let answer = Answer(self.0.call(&self.0.permits, &parameters).await?);
        let mut reply = answer.of_permits()?;
        if let Some(interval) = self.0.polling.filter(|_| answer.number(8).is_ok_and(|mine| mine > 0)) {
            reply.again = Some(reply.again.map_or(interval, |again| again.min(interval)));
        }
        Ok(reply)
    }

    async fn rates(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        let all = |rule| numbers(rule).map(|numbers| Vec::from(numbers.map(int)));
        let (requests, withdrawn) = requests(sync);
        // A change to another kind of limiter, or to a window of another length, is none.
        let fits = |change: &Rule| match (rule, change) {
            (Rule::Window { length, .. }, Rule::Window { length: other, .. }) => length == other,
            _ => rule.kind() == change.kind(),
        };
        let parameters: [Parameter<'_>; 17] = [
            (&rule.kind(), Type::TEXT),
            (&key.as_str(), Type::TEXT),
            (&all(rule)?, Type::INT8_ARRAY),
            (&sync.session.to_string(), Type::TEXT),
            (&&*self.0.channel, Type::TEXT),
            (&int(sync.seq), Type::INT8),
            (&sync.begin, Type::BOOL),
            (&int(micros(sync.ttl)), Type::INT8),
            (&int(sync.charged), Type::INT8),
            (&int(sync.seen), Type::INT8),
            (&sync.end, Type::BOOL),
            (&int(sync.edition), Type::INT8),
            (
                &sync.change.filter(fits).as_ref().map(all).transpose()?,
                Type::INT8_ARRAY,
            ),
            (&requests, Type::INT8_ARRAY),
            (&withdrawn, Type::INT8_ARRAY),
            (&int(micros(Rule::REMEMBERED)), Type::INT8),
            (&self.0.durable, Type::BOOL),
        ];
        let mut words = self.0.call(&self.0.rates, &parameters).await?;
        let rest = words.split_off(1.min(words.len()));
        let sessions = Answer(words).number(0)?;
        let mut reply = Answer(rest).of_rates(rule)?;
        reply.usage.sessions = sessions;
        Ok(reply)
    }
}

impl Inner {
    async fn call(&self, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<String>, StoreError> {
        let answer = self.link.call(statement, parameters).await?;
        self.used.notify_one();
        let words = answer.first().and_then(|row| row.try_get(0).ok());
        words.ok_or_else(|| Answer(Vec::new()).nonsense())
    }

    /// Deletes rows that are as good as none. Returns the time until there may be another one.
    async fn purge(&self) -> Result<Option<Duration>, StoreError> {
        let rows = self.link.call(&self.purge, &[(&PURGED, Type::INT4)]).await?;
        let next = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok());
        Ok(next
            .and_then(|next| u64::try_from(next).ok())
            .map(Duration::from_micros))
    }
}

/// Deletes rows, also those of dead processes. Once the last handle is gone it only waits for those that are due soon.
async fn purge(inner: Arc<Inner>) {
    let (mut next, mut lingers) = (None, 0);
    while lingers < 60 {
        let pause = next.map_or(PAUSES.1, |next: Duration| next.clamp(PAUSES.0, PAUSES.1));
        let is_used = timeout(pause, inner.used.notified()).await.is_ok();
        if is_used {
            tokio::time::sleep(PAUSES.0).await;
        }
        let is_last = Arc::strong_count(&inner) == 1;
        if is_used || next.is_some() {
            // An error is told to the next sync.
            next = inner.purge().await.unwrap_or(None);
        }
        if is_last {
            lingers = next.filter(|next| *next < PAUSES.1).map_or(60, |_| lingers + 1);
        }
    }
}

impl Backend for Postgres {
    async fn sync(&self, key: &Key, rule: &Rule, sync: &SyncRequest) -> Result<SyncReply, StoreError> {
        // Before there is a notification.
        if sync.begin || sync.requests.iter().any(|request| request.queue) {
            self.subscription(key, sync.session);
        }
        match *rule {
            Rule::Permits { limit } => self.permits(key, limit, sync).await,
            _ => self.rates(key, rule, sync).await,
        }
    }

    async fn notified(&self, key: &Key, session: Session) {
        self.subscription(key, session).notified().await;
    }

    fn notification(&self, key: &Key, session: Session) -> Notification {
        self.subscription(key, session).take()
    }

    fn leave(&self, key: &Key, session: Session) {
        self.0.subscriptions.close(&Self::name(key, session));
    }

    fn supports_steps(&self) -> Result<(), RemoteError> {
        Ok(())
    }

    async fn step(&self, key: &Key, legs: &[KeyLeg], step: &Step) -> Result<StepReply, StoreError> {
        let is_permits = |leg: &KeyLeg| matches!(leg.rule, Rule::Permits { .. });
        let lease = step.lease.filter(|_| legs.iter().any(is_permits));
        let place = Session::of_place(step.client);
        let waiting = lease.map_or(usize::MAX, |lease| lease.waiting);
        if waiting < step.takes.len() {
            // Before there is a notification.
            self.subscription(key, place);
        }
        let mut rules = Vec::with_capacity(3 * legs.len());
        for leg in legs {
            rules.extend(match leg.rule {
                Rule::Permits { limit } => [int(limit), 0, 0],
                _ => numbers(&leg.rule)?.map(int),
            });
        }
        let ints = |units: &LegUnits| -> Vec<i64> { units.iter().take(legs.len()).copied().map(int).collect() };
        let mut corrections = Vec::new();
        for correction in &step.corrections {
            corrections.push(int(correction.at));
            let units = correction.charged.iter().zip(&correction.actual).take(legs.len());
            corrections.extend(units.flat_map(|(&charged, &actual)| [int(charged), int(actual)]));
        }
        let mut reservations = Vec::new();
        for reserved in &step.reserved {
            reservations.extend([reserved.at, reserved.until].map(int));
            for leg in 0..legs.len() {
                reservations.extend([reserved.before[leg], reserved.after[leg], reserved.used[leg]].map(int));
            }
        }
        let parameters: [Parameter<'_>; 19] = [
            (&key.as_str(), Type::TEXT),
            (&place.to_string(), Type::TEXT),
            (&&*self.0.channel, Type::TEXT),
            (&int(step.seq), Type::INT8),
            (&int(micros(step.remember)), Type::INT8),
            (&legs.iter().map(|leg| &*leg.name).collect::<Vec<_>>(), Type::TEXT_ARRAY),
            (
                &legs.iter().map(|leg| leg.rule.kind()).collect::<Vec<_>>(),
                Type::TEXT_ARRAY,
            ),
            (&rules, Type::INT8_ARRAY),
            (&reservations, Type::INT8_ARRAY),
            (&step.reserve_for.map(|time| int(micros(time))), Type::INT8),
            (&corrections, Type::INT8_ARRAY),
            (&step.takes.iter().flat_map(ints).collect::<Vec<_>>(), Type::INT8_ARRAY),
            (&step.grant.as_ref().map(ints), Type::INT8_ARRAY),
            (
                &legs
                    .iter()
                    .map(|leg| leg.key.as_ref().map(Key::as_str))
                    .collect::<Vec<_>>(),
                Type::TEXT_ARRAY,
            ),
            (&lease.map(|lease| int(micros(lease.ttl))), Type::INT8),
            (&lease.map(|lease| int(lease.waiting as u64)), Type::INT8),
            (&lease.map(|lease| ints(&lease.held)), Type::INT8_ARRAY),
            (&int(micros(self.0.longest_ttl)), Type::INT8),
            (&self.0.durable, Type::BOOL),
        ];
        let answer = Answer(self.0.call(&self.0.steps, &parameters).await?);
        let mut reply = answer.of_step(legs.len(), step, lease.is_some())?;
        // A waiter for permits is not notified: it asks again.
        if let Some(interval) = self.0.polling {
            let refusals = reply
                .takes
                .iter_mut()
                .skip(waiting)
                .filter_map(|taken| taken.as_mut().err());
            for refusal in refusals.filter(|refusal| legs.get(refusal.leg).is_some_and(is_permits)) {
                refusal.after = refusal.after.map(|after| after.min(interval));
            }
        }
        Ok(reply)
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}
