//! Every limit of the service, in one place, and how they stand.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tollgate::status::{Description, State};
use tollgate::{Clock, Keyed, Leg, Limiter, LimiterExt, Quota, Semaphore, TokenBucket, WorkerPool};
use tollgate_config::{PolicySpec, ReloadablePolicy};
use tollgate_http::{Refused, Respond, WaitingRoom};
use tollgate_resilience::Adaptive;
use tollgate_resilience::adaptive::Vegas;
use tollgate_resilience::{CircuitBreaker, OpenTime};

/// The quota of a client: half a request per second, and 40 at once.
pub(crate) const PER_CLIENT: Quota = Quota::per_minute(30).burst(40);
/// How many clients are known at once.
const CLIENTS: usize = 50_000;
/// The guaranteed rate of appointments at the core, and the share of its measured throughput that is given out if that is more.
const COME_BACK: Quota = Quota::per_second(20);
const SHARE: f64 = 0.4;
/// The connections that the database bears.
pub(crate) const CONNECTIONS: usize = 3;
/// How many jobs may wait.
const JOBS: usize = 200;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

pub(crate) struct Limits {
    /// Level one: the rate of each client.
    pub(crate) clients: Arc<Keyed<IpAddr, Leg<TokenBucket>>>,
    /// Level two: how much the core does at once; from a file.
    pub(crate) core: ReloadablePolicy,
    /// Gives clients that the core refuses a retry time, which is honoured: one for each known client.
    pub(crate) room: Arc<WaitingRoom>,
    /// Level three: whether, and how often, the downstream is asked.
    pub(crate) breaker: Arc<CircuitBreaker>,
    pub(crate) adaptive: Arc<Leg<Adaptive>>,
    /// Connections to the database.
    pub(crate) connections: Arc<Semaphore>,
    /// Background jobs.
    pub(crate) jobs: WorkerPool,
    pub(crate) counts: Arc<Counts>,
}

/// What has happened so far.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) served: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) in_flight: AtomicU64,
    /// The most requests in flight at once, counted by the requests, not by the semaphore.
    pub(crate) peak: AtomicU64,
    refused: Mutex<BTreeMap<Box<str>, u64>>,
}

impl Limits {
    pub(crate) fn new(policy: &PolicySpec) -> Result<Self, Failure> {
        let breaker = CircuitBreaker::builder()
            .time_window(Duration::from_secs(4))
            .minimum_calls(10)
            .open_for(OpenTime::fixed(Duration::from_secs(2)))
            .probes(3)
            .build()?;
        let adaptive = Adaptive::builder(Semaphore::new(4))
            .law(Vegas::new())
            .bounds(2, 32)
            .window(Duration::from_millis(500), 10)
            .build()?;
        Ok(Self {
            clients: Arc::new(Keyed::new(CLIENTS, |_: &IpAddr| {
                TokenBucket::new(PER_CLIENT).named("client")
            })),
            core: policy.build(&Clock::real())?,
            room: Arc::new(WaitingRoom::new(CLIENTS, COME_BACK)?.share(SHARE)?),
            breaker: Arc::new(breaker),
            adaptive: Arc::new(adaptive.named("downstream")),
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            jobs: WorkerPool::builder().workers(1).max_queue(JOBS).build()?,
            counts: Arc::default(),
        })
    }

    /// How many requests the core may have in flight.
    pub(crate) fn core_limit(&self) -> u64 {
        let mut limit = 0;
        self.core.describe(&mut |leg| {
            if let ("core", State::Permits { limit: permits, .. }) = (leg.leg, leg.state) {
                limit = permits;
            }
        });
        limit
    }

    /// Everything that the page shows.
    pub(crate) fn snapshot(&self) -> Value {
        let mut legs = Vec::new();
        let mut show = |leg: Description<'_>| {
            legs.push(match leg.state {
                State::Permits { limit, in_use, waiting } => json!({
                    "leg": leg.leg, "kind": leg.kind, "limit": limit, "in_use": in_use, "waiting": waiting,
                }),
                State::Breaker { state, open_for } => json!({
                    "leg": leg.leg, "kind": leg.kind, "state": format!("{state:?}"),
                    "open_for": open_for.map(|time| time.as_secs_f64()),
                }),
                State::Queue { waiting } => json!({ "leg": "queue", "kind": "queue", "waiting": waiting }),
                _ => json!({ "leg": leg.leg, "kind": leg.kind }),
            });
        };
        self.core.describe(&mut show);
        self.connections.describe(&mut |leg| show(leg.named("database")));
        self.adaptive.describe(&mut show);
        self.breaker.describe(&mut show);
        let (jobs, room) = (self.jobs.stats(), self.room.stats());
        json!({
            "served": self.counts.served.load(Ordering::Relaxed),
            "fallbacks": self.counts.fallbacks.load(Ordering::Relaxed),
            "refused": *self.counts.refused.lock().unwrap_or_else(PoisonError::into_inner),
            "clients": self.clients.len(),
            "room": { "told": self.room.len(), "came": room.redeemed, "broken": room.broken },
            "legs": legs,
            "jobs": { "queued": jobs.queued, "finished": jobs.finished, "limit": JOBS },
        })
    }
}

impl Counts {
    /// A request that is in the core as long as this lives.
    pub(crate) fn enter(&self) -> InFlight<'_> {
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.peak.fetch_max(now, Ordering::SeqCst);
        InFlight(self)
    }
}

pub(crate) struct InFlight<'a>(&'a Counts);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.0.served.fetch_add(1, Ordering::Relaxed);
    }
}

/// Answers refusals as `R` does, and counts them by leg.
#[derive(Clone)]
pub(crate) struct Counted<R>(pub(crate) R, pub(crate) Arc<Counts>);

impl<B, E, R: Respond<B, E>> Respond<B, E> for Counted<R> {
    type Error = R::Error;

    fn refused<L: Limiter>(&self, refused: Refused<L>) -> Result<http::Response<B>, R::Error> {
        let mut counts = self.1.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(refused.refusal.leg().into()).or_default() += 1;
        drop(counts);
        self.0.refused(refused)
    }

    fn admitted<L: Limiter>(&self, response: &mut http::Response<B>, limiter: &L) {
        self.0.admitted(response, limiter);
    }

    fn failed(&self, error: E) -> R::Error {
        self.0.failed(error)
    }
}
