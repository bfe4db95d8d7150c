//! The gateway itself, in virtual time or live: every request is a task that is admitted by its tenant's policy, works for
//! as long as its tokens take, settles what it really cost, and is written to the audit log.

use super::audit::{Audit, Limits, Row};
use super::pace::Pace;
use super::trace::Request;
use super::witness::{NUMBER, Order, Witness};
use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tollgate::{
    Ask, BoxLimiter, Cost, LimiterExt, ManualClock, Policy, PolicyBuilder, Quota, Semaphore, SlidingWindow, TokenBucket,
};

pub const TOKENS: Cost = Cost::new("tokens");

/// One tenant: its limits and its traffic.
pub struct Tenant {
    pub name: &'static str,
    pub requests: Quota,
    pub tokens: Quota,
    pub window: (u64, Duration),
    pub in_flight: usize,
    pub max_wait: Duration,
    pub max_queue: usize,
    pub trace: Vec<Request>,
}

impl Tenant {
    pub fn code(trace: Vec<Request>) -> Self {
        Self {
            name: "code",
            requests: Quota::per_minute(300),
            tokens: Quota::per_minute(600_000),
            window: (40, Duration::from_secs(2)),
            in_flight: 24,
            max_wait: Duration::from_secs(5),
            max_queue: 200,
            trace,
        }
    }

    pub fn conv(trace: Vec<Request>) -> Self {
        Self {
            name: "conv",
            requests: Quota::per_minute(400),
            window: (20, Duration::from_secs(2)),
            in_flight: 48,
            ..Self::code(trace)
        }
    }

    fn policy(&self, pace: &Pace, witness: &Arc<Witness>) -> Result<Policy<BoxLimiter>, Box<dyn Error>> {
        let clock = &pace.clock;
        let (limit, length) = self.window;
        Ok(Policy::builder()
            .on(clock)
            .limit(TokenBucket::new(pace.quota(self.requests)?).on(clock).named("requests"))
            .limit(
                TokenBucket::new(pace.quota(self.tokens)?)
                    .on(clock)
                    .per(TOKENS)
                    .named("tokens"),
            )
            .limit(
                SlidingWindow::new(limit, pace.scaled(length))?
                    .on(clock)
                    .named("window"),
            )
            .limit(Semaphore::new(self.in_flight).named("in flight"))
            .limit(Arc::clone(witness))
            .max_wait(pace.scaled(self.max_wait))
            .max_queue(self.max_queue)
            .boxed()
            .build()?)
    }

    fn limits(&self, pace: &Pace) -> Result<Limits, Box<dyn Error>> {
        let quota = |quota: Quota| {
            let quota = pace.quota(quota)?;
            let period = quota.period().as_nanos() as i64;
            Ok::<_, Box<dyn Error>>([quota.count() as i64, period, quota.burst_size() as i64])
        };
        Ok(Limits {
            tenant: self.name.into(),
            requests: quota(self.requests)?,
            tokens: quota(self.tokens)?,
            window: [self.window.0 as i64, pace.scaled(self.window.1).as_nanos() as i64],
            in_flight: self.in_flight as i64,
            max_wait: pace.scaled(self.max_wait).as_nanos() as i64,
            lateness: PolicyBuilder::LATENESS.as_nanos() as i64,
            live: pace.live,
            speed: pace.speed.into(),
            arrived: self.trace.len() as i64,
            trace_tokens: self
                .trace
                .iter()
                .map(|request| (request.context + request.generated) as i64)
                .sum(),
        })
    }
}

/// How long a request takes once it is admitted.
pub fn service_time(request: &Request) -> Duration {
    Duration::from_millis(150)
        + Duration::from_micros(50 * request.context)
        + Duration::from_millis(30 * request.generated)
}

/// Called once per request that has been written.
pub type Progress = Arc<dyn Fn() + Send + Sync>;

/// Runs all tenants' traffic to its end, in virtual time.
pub fn run(
    tenants: &[Tenant],
    audit: &Arc<Audit>,
    clock: &ManualClock,
    progress: &Progress,
) -> Result<(), Box<dyn Error>> {
    // When no task can run the runtime parks, and virtual time goes on to the next timer. A timer may move a queue and wake no task: the beat
    // has the runtime park again then, as long as there are timers.
    let (hook, beat) = (clock.clone(), Arc::new(tokio::sync::Notify::new()));
    let beats = Arc::clone(&beat);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || {
            if hook.advance_to_next_timer() {
                beats.notify_one();
            }
        })
        .build()?;
    runtime.block_on(async {
        tokio::spawn(async move {
            loop {
                beat.notified().await;
            }
        });
        traffic(tenants, audit, &Pace::virtual_time(clock), progress).await
    })
}

/// Runs all tenants' traffic to its end on real threads and timers, `speed` times as fast as it came.
pub fn run_live(tenants: &[Tenant], audit: &Arc<Audit>, speed: u32, progress: &Progress) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build()?;
    runtime.block_on(async {
        // Measures the counter before time counts.
        let _ = tollgate::Clock::real();
        traffic(tenants, audit, &Pace::live(speed), progress).await
    })
}

async fn traffic(
    tenants: &[Tenant],
    audit: &Arc<Audit>,
    pace: &Pace,
    progress: &Progress,
) -> Result<(), Box<dyn Error>> {
    let start = tenants
        .iter()
        .filter_map(|tenant| tenant.trace.first())
        .map(|first| first.at)
        .min();
    let start = start.ok_or("there is no traffic")?;
    let order = Order::default();
    let mut tasks = JoinSet::new();
    for tenant in tenants {
        audit.write_limits(&tenant.limits(pace)?)?;
        let witness = Arc::new(Witness::new(pace, &order, tenant.trace.len()));
        let gate = Arc::new(Gate {
            name: tenant.name,
            policy: tenant.policy(pace, &witness)?,
            pace: pace.clone(),
            witness,
            order: order.clone(),
        });
        let (audit, progress) = (Arc::clone(audit), Arc::clone(progress));
        let trace = tenant.trace.clone();
        tasks.spawn(async move {
            let mut requests = JoinSet::new();
            for (id, request) in trace.into_iter().enumerate() {
                gate.pace.sleep_until(Duration::from_nanos(request.at - start)).await;
                let row = Row::new(gate.name, id as i64, gate.pace.elapsed());
                let (gate, audit, progress) = (Arc::clone(&gate), Arc::clone(&audit), Arc::clone(&progress));
                requests.spawn(async move {
                    let row = gate.serve(&request, row).await;
                    audit.write(&gate.pace, &row).await;
                    progress();
                });
            }
            requests.join_all().await;
        });
    }
    tasks.join_all().await;
    audit.finish()
}

/// State that one tenant's requests share.
struct Gate {
    name: &'static str,
    policy: Policy<BoxLimiter>,
    pace: Pace,
    witness: Arc<Witness>,
    order: Order,
}

impl Gate {
    /// One request, from its arrival to its end.
    async fn serve(&self, request: &Request, mut row: Row) -> Row {
        let Self { pace, policy, .. } = self;
        // The number of generated tokens is unknown: charged by an estimate, settled at the end.
        row.estimate = (request.context + 64) as i64;
        (row.context, row.generated) = (request.context as i64, request.generated as i64);
        let ask = Ask::one().cost(TOKENS, row.estimate as u64).cost(NUMBER, row.id as u64);
        let mut admission = pin!(policy.admit(ask));
        let mut joined = None;
        let outcome = poll_fn(|cx| {
            let polled = admission.as_mut().poll(cx);
            joined.get_or_insert_with(|| pace.elapsed());
            polled
        });
        let outcome = outcome.await;
        row.joined(joined.unwrap_or_default());
        let mut permit = match outcome {
            Ok(permit) => permit,
            Err(refusal) => {
                row.refused(refusal.leg(), refusal.reason(), pace.elapsed());
                return row;
            }
        };
        row.admitted(&self.witness.of(row.id as usize), pace.elapsed());
        pace.sleep(service_time(request)).await;
        let actual = request.context + request.generated;
        // Numbered before it happens: a request that is admitted with the refund comes later.
        row.finished(self.order.next(), pace.elapsed());
        if permit.settle(TOKENS, actual).is_err() {
            unreachable!("the policy has a leg that counts tokens");
        }
        row.settled(pace.elapsed());
        drop(permit);
        row
    }
}
