//! The gateway itself, in virtual time: every request is a task that is admitted by its tenant's policy, works for as
//! long as its tokens take, settles what it really cost, and is written to the audit log.

use super::audit::{Audit, Limits, Row};
use super::trace::Request;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;
use tollgate::policy::Legs;
use tollgate::time::Sleep;
use tollgate::{Ask, Cost, LimiterExt, ManualClock, Policy, Quota, Semaphore, SlidingWindow, TokenBucket};

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

    fn policy(&self, clock: &ManualClock) -> Result<Policy<Legs>, Box<dyn std::error::Error>> {
        let (limit, length) = self.window;
        Ok(Policy::builder()
            .clock(clock)
            .limit(TokenBucket::new(self.requests).on(clock).named("requests"))
            .limit(TokenBucket::new(self.tokens).on(clock).per(TOKENS).named("tokens"))
            .limit(SlidingWindow::new(limit, length)?.on(clock).named("window"))
            .limit(Semaphore::new(self.in_flight).named("in flight"))
            .max_wait(self.max_wait)
            .max_queue(self.max_queue)
            .build()?)
    }

    fn limits(&self) -> Limits {
        let quota = |quota: &Quota| {
            let period = quota.period().as_nanos() as i64;
            [quota.count() as i64, period, quota.burst_size() as i64]
        };
        Limits {
            tenant: self.name.into(),
            requests: quota(&self.requests),
            tokens: quota(&self.tokens),
            window: [self.window.0 as i64, self.window.1.as_nanos() as i64],
            in_flight: self.in_flight as i64,
            max_wait: self.max_wait.as_nanos() as i64,
            arrived: self.trace.len() as i64,
            trace_tokens: self
                .trace
                .iter()
                .map(|request| (request.context + request.generated) as i64)
                .sum(),
        }
    }
}

/// How long a request takes once it is admitted.
pub fn service_time(request: &Request) -> Duration {
    Duration::from_millis(150)
        + Duration::from_micros(50 * request.context)
        + Duration::from_millis(30 * request.generated)
}

/// Numbers the events of a run in the order in which they happen: instants alone do not, since many share one.
#[derive(Clone, Default)]
struct Order(Rc<Cell<i64>>);

impl Order {
    fn next(&self) -> i64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

/// Runs all tenants' traffic to its end. `progress` is called once per request that has been written.
pub fn run(
    tenants: &[Tenant],
    audit: &Rc<Audit>,
    clock: &ManualClock,
    progress: &Rc<dyn Fn()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let start = tenants
        .iter()
        .filter_map(|tenant| tenant.trace.first())
        .map(|first| first.at)
        .min();
    let start = start.ok_or("there is no traffic")?;
    // When no task can run the runtime parks, and virtual time goes on to the next timer.
    let hook = clock.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .on_thread_park(move || {
            hook.advance_to_next_timer();
        })
        .build()?;
    let order = Order::default();
    let tasks = tokio::task::LocalSet::new();
    for tenant in tenants {
        audit.write_limits(&tenant.limits())?;
        let policy = tenant.policy(clock)?;
        let name: Rc<str> = tenant.name.into();
        let (clock, order, audit, progress) = (clock.clone(), order.clone(), Rc::clone(audit), Rc::clone(progress));
        let trace = tenant.trace.clone();
        tasks.spawn_local(async move {
            for (id, request) in trace.into_iter().enumerate() {
                let arrival = clock.after(tollgate::Instant::ZERO, Duration::from_nanos(request.at - start));
                Sleep::until(&clock, arrival).await;
                let row = Row::new(&name, id as i64, clock.elapsed());
                let (policy, clock, order) = (policy.clone(), clock.clone(), order.clone());
                let (audit, progress) = (Rc::clone(&audit), Rc::clone(&progress));
                tokio::task::spawn_local(async move {
                    let row = serve(&policy, &clock, &order, &request, row).await;
                    audit.write(&clock, &row).await;
                    progress();
                });
            }
        });
    }
    runtime.block_on(tasks);
    audit.finish()
}

/// One request, from its arrival to its end.
async fn serve(policy: &Policy<Legs>, clock: &ManualClock, order: &Order, request: &Request, mut row: Row) -> Row {
    // Nobody knows how much will be generated: charged by an estimate, settled at the end.
    row.estimate = (request.context + 64) as i64;
    (row.context, row.generated) = (request.context as i64, request.generated as i64);
    let mut permit = match policy.admit(Ask::one().cost(TOKENS, row.estimate as u64)).await {
        Ok(permit) => permit,
        Err(refusal) => {
            row.refused(refusal.leg(), refusal.reason(), clock.elapsed());
            return row;
        }
    };
    row.admitted(order.next(), clock.elapsed());
    Sleep::until(clock, clock.after(clock.now(), service_time(request))).await;
    let actual = request.context + request.generated;
    // Numbered before it happens: whoever is admitted with what flows back comes later.
    row.finished(order.next(), clock.elapsed());
    if permit.settle(TOKENS, actual).is_err() {
        unreachable!("the policy has a leg that counts tokens");
    }
    drop(permit);
    row
}
