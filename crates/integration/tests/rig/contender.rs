//! A process that takes permits with many tasks, gives them back, and records its observations.

use super::history::{Ask, Event, Writer};
use super::instant::{Nanos, nanos, now, until};
use super::process::until_closed;
use super::spender::{Meter, Tap, spend};
use super::tenants::{MOST_TOKENS, Tenant, Tenants};
use serde::{Deserialize, Serialize};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// A request for a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) weight: u64,
    /// Where tokens are counted.
    pub(crate) tokens: u64,
    /// It does not wait for its turn, where it need not.
    pub(crate) at_once: bool,
}

/// Permits across machines, as the rig uses them.
pub(crate) trait Gate: Send + Sync + 'static {
    type Permit: Held;

    /// Waits for this.
    fn acquire(&self, wish: Wish) -> impl Future<Output = Result<Self::Permit, String>> + Send;
}

/// A semaphore across machines, as the rig uses it.
pub(crate) trait Semaphore: Gate {
    /// Changes the limit, for all processes, and returns when it is changed.
    fn set_limit(&self, limit: u64) -> impl Future<Output = Result<(), String>> + Send;

    type Tap: Tap;

    /// The rate and the window beside it, as far as the store has them. They do not block each other.
    fn taps(&self) -> Vec<(Meter, Self::Tap)>;

    type Tenants: Tenants;

    /// The tenants beside it, if the store can have them.
    fn tenants(&self) -> Option<Self::Tenants>;

    /// Gives everything back, and returns when it is given back.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// An acquired permit. Dropping it gives it back.
pub(crate) trait Held: Send + 'static {
    fn weight(&self) -> u64;

    /// Says how many tokens were used, where they are counted.
    fn settle(&mut self, tokens: u64) {
        let _ = tokens;
    }

    fn token(&self) -> u64;

    /// How long it is until it is lost, without a renewal.
    fn remaining(&self) -> Duration;

    /// Ends when the permit is lost.
    fn lost(&mut self) -> impl Future<Output = ()> + Send;
}

/// The parameters of a contender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) process: u32,
    /// The store, or a proxy before it.
    pub(crate) store: SocketAddr,
    /// The name of the semaphore.
    pub(crate) name: String,
    pub(crate) limit: u64,
    pub(crate) ttl: Duration,
    pub(crate) tasks: u64,
    /// The greatest weight that is requested.
    pub(crate) heaviest: u64,
    /// During these times the process keeps its permits, so that it holds some when it is struck.
    pub(crate) keeps: Vec<(Nanos, Nanos)>,
    /// During these times others are struck, and this process holds its permits for longer, so that all permits in use are
    /// seen.
    pub(crate) lingers: Vec<(Nanos, Nanos)>,
    /// From then on it requests nothing more, and holds nothing for long.
    pub(crate) end: Nanos,
    pub(crate) history: PathBuf,
}

impl Plan {
    /// Until when permits held at `instant` are kept.
    fn keeps_until(&self, instant: Nanos) -> Option<Nanos> {
        lasting(&self.keeps, instant).map(|until| until.min(self.end))
    }
}

/// The end of the span in which `instant` lies.
fn lasting(spans: &[(Nanos, Nanos)], instant: Nanos) -> Option<Nanos> {
    let span = spans.iter().find(|&&(from, until)| from <= instant && instant < until);
    span.map(|&(_, until)| until)
}

/// Takes part in the run with `gate` until the plan's end, waits until the rig closes it, and gives everything back.
pub(crate) async fn contend(plan: Plan, writer: Arc<Writer>, gate: impl Semaphore) {
    let gate = Arc::new(gate);
    let tenants = gate.tenants();
    let mut tasks = start(&plan, &writer, &gate, 0, plan.tasks);
    if let Some(tenants) = &tenants {
        for (key, tenant) in tenants.all() {
            let callers = Tenant::of(key).tasks;
            tasks.extend(start(&plan, &writer, &Arc::new(tenant), key, callers));
        }
    }
    spend(&plan, &writer, gate.taps()).await;
    for task in tasks {
        task.await.expect("the task ends");
    }
    if let Some(tenants) = tenants {
        tenants.close().await;
    }
    let closed = until_closed();
    tokio::task::spawn_blocking(move || closed.join())
        .await
        .expect("it ends")
        .expect("it ends");
    gate.close().await;
}

/// Starts the callers of a tenant, or of the semaphore.
fn start<G: Gate>(plan: &Plan, writer: &Arc<Writer>, gate: &Arc<G>, key: u32, tasks: u64) -> Vec<JoinHandle<()>> {
    let asks = Arc::new(AtomicU64::new(0));
    let tasks = (0..tasks).map(|task| {
        let task = Task {
            gate: Arc::clone(gate),
            key,
            at_once: task % 2 == 1,
            writer: Arc::clone(writer),
            asks: Arc::clone(&asks),
            plan: plan.clone(),
            random: Random(u64::from(plan.process) << 32 | u64::from(key) << 16 | task),
        };
        tokio::spawn(task.run())
    });
    tasks.collect()
}

/// One caller after another.
struct Task<G> {
    gate: Arc<G>,
    /// The number of the tenant.
    key: u32,
    /// It does not wait where it need not: so it is known when its grants were made.
    at_once: bool,
    writer: Arc<Writer>,
    /// The number of requests of this process there.
    asks: Arc<AtomicU64>,
    plan: Plan,
    random: Random,
}

/// How an ask ended without a refusal.
enum Answer<P> {
    Permit(P),
    /// The caller stopped waiting.
    Left,
    /// The caller was notified of its turn, and left without looking.
    LeftAtTheGrant,
}

impl<G: Gate> Task<G> {
    async fn run(mut self) {
        while now() < self.plan.end {
            self.once().await;
            sleep(self.random.millis(0..10)).await;
        }
    }

    async fn once(&mut self) {
        let ask = Ask {
            process: self.plan.process,
            // Relaxed: only the number has to be unique.
            number: self.asks.fetch_add(1, Ordering::Relaxed),
            key: self.key,
        };
        // A tenant's call need not hold one of its permits.
        let free = self.key > 0 && self.random.below(2) == 0;
        let wish = Wish {
            weight: if free {
                0
            } else {
                1 + self.random.below(self.plan.heaviest)
            },
            tokens: 1 + self.random.below(MOST_TOKENS),
            at_once: self.at_once,
        };
        let patience = self.random.below(10);
        let leaves_after = self.random.millis(0..100);
        let gate = Arc::clone(&self.gate);
        let sent = now();
        let weight = wish.weight;
        self.writer.write(&Event::Asked { ask, weight, at: sent });
        let acquire = pin!(gate.acquire(wish));
        let answer = match patience {
            0 => left_at_the_grant(acquire).await,
            1 => match timeout(leaves_after, acquire).await {
                Ok(answer) => answer.map(Answer::Permit),
                Err(_) => Ok(Answer::Left),
            },
            // A waiter without an answer for this long has been forgotten, which the checker reports.
            _ => match timeout(until(self.plan.end) + 3 * self.plan.ttl, acquire).await {
                Ok(answer) => answer.map(Answer::Permit),
                Err(_) => return,
            },
        };
        match answer {
            Ok(Answer::Permit(permit)) => self.hold(ask, wish, sent, permit).await,
            Ok(Answer::Left) => self.left(ask, false),
            Ok(Answer::LeftAtTheGrant) => self.left(ask, true),
            Err(why) => {
                self.writer.write(&Event::Refused { ask, at: now(), why });
                sleep(self.random.millis(10..50)).await;
            }
        }
    }

    fn left(&self, ask: Ask, at_the_grant: bool) {
        let at = now();
        self.writer.write(&Event::Cancelled { ask, at, at_the_grant });
    }

    async fn hold(&mut self, ask: Ask, wish: Wish, sent: Nanos, mut permit: G::Permit) {
        let received = now();
        let kept = self.random.below(2 * MOST_TOKENS).min(wish.tokens);
        let mut deadline = later(received, &permit);
        self.writer.write(&Event::Granted {
            ask,
            weight: permit.weight(),
            token: permit.token(),
            tokens: (wish.tokens, kept),
            sent,
            received,
            deadline,
        });
        let held = if lasting(&self.plan.lingers, received).is_some() {
            self.plan.ttl / 8
        } else {
            self.random.millis(0..30)
        };
        let mut over = received + nanos(held);
        loop {
            if wish.weight > 0
                && let Some(kept) = self.plan.keeps_until(now())
            {
                over = over.max(kept);
            }
            let nap = until(over).min(self.plan.ttl / 8);
            if timeout(nap, permit.lost()).await.is_ok() {
                let at = now();
                self.writer.write(&Event::Lost { ask, at, deadline });
                return;
            }
            deadline = later(deadline, &permit);
            let at = now();
            if at >= over {
                self.writer.write(&Event::Released { ask, at, deadline });
                permit.settle(kept);
                return;
            }
            self.writer.write(&Event::Held { ask, deadline });
        }
    }
}

/// The instant at which a permit is lost, rather too early than too late; the one that was `known`, when it is over.
fn later(known: Nanos, permit: &impl Held) -> Nanos {
    let at = now();
    known.max(match permit.remaining() {
        Duration::ZERO => 0,
        remaining => at + nanos(remaining),
    })
}

/// Waits like a caller that is notified of its turn, and leaves instead of looking at its result.
async fn left_at_the_grant<P>(
    mut acquire: Pin<&mut impl Future<Output = Result<P, String>>>,
) -> Result<Answer<P>, String> {
    let mut polled = false;
    poll_fn(|context| {
        if std::mem::replace(&mut polled, true) {
            return Poll::Ready(Ok(Answer::LeftAtTheGrant));
        }
        acquire.as_mut().poll(context).map_ok(Answer::Permit)
    })
    .await
}

/// Random numbers that differ from task to task, and are the same in every run.
struct Random(u64);

impl Random {
    /// SplitMix64, of Steele, Lea and Flood.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(range.start + self.below(range.end - range.start))
    }
}
