//! Clients of a server with a hidden quota, which halves at 200 s and doubles at 400 s of ten virtual minutes: `Upstream` and a rate
//! that finds itself, beside throttle-net and a plain loop of retries. It prints the part of the quota that was used, and the part
//! of the requests that was refused, without the second after the halving.

use futures::future::join_all;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use throttle_net::provider::Window;
use throttle_net::{Throttle, TokioClock};
use tollgate::{Ask, Limiter, LimiterExt, ManualClock, Outcome, Permit, Policy, Quota, TokenBucket};
use tollgate_resilience::adaptive::{Adaptive, Cubic};
use tollgate_resilience::upstream::{Call, Feedback, Refill, RemainingQuota, Upstream};

const SECOND: Duration = Duration::from_secs(1);
const END: Duration = Duration::from_secs(600);
const TASKS: u64 = 64;
/// The period of the windows of a server that has them, in seconds.
const WINDOW: u64 = 10;

/// SplitMix64.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What the responses of a server say.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Says {
    /// The remaining quota, and `Retry-After` with a 429.
    Fields,
    /// `Retry-After` with a 429.
    RetryAfter,
    /// A bare 429.
    Nothing,
}

struct Server {
    /// Fills steadily, as a bucket of one second; else at the end of each window.
    steady: bool,
    says: Says,
    left: f64,
    at: Duration,
    served: u64,
    refused: u64,
}

struct Answer {
    served: bool,
    left: u64,
    full: u64,
    reset: Duration,
    retry_after: Option<Duration>,
}

/// Calls per second.
fn rate(at: Duration) -> f64 {
    if (200..400).contains(&at.as_secs()) {
        50.0
    } else {
        100.0
    }
}

impl Server {
    fn new(steady: bool, says: Says) -> Self {
        let left = if steady { 100.0 } else { 100.0 * WINDOW as f64 };
        let at = Duration::ZERO;
        Self {
            steady,
            says,
            left,
            at,
            served: 0,
            refused: 0,
        }
    }

    fn answer(&mut self, now: Duration) -> Answer {
        let full = rate(now) * if self.steady { 1.0 } else { WINDOW as f64 };
        if self.steady {
            self.left = (self.left + rate(now) * (now - self.at).as_secs_f64()).min(full);
        } else if now.as_secs() / WINDOW > self.at.as_secs() / WINDOW {
            self.left = full;
        }
        self.at = now;
        let served = self.left >= 1.0;
        let counts = !(200..201).contains(&now.as_secs());
        match served {
            true => {
                self.left -= 1.0;
                self.served += u64::from(counts);
            }
            false => self.refused += u64::from(counts),
        }
        let reset = match self.steady {
            true => Duration::from_secs_f64((full - self.left) / rate(now)),
            false => {
                let left = Duration::from_secs((now.as_secs() / WINDOW + 1) * WINDOW) - now;
                Duration::from_secs_f64(left.as_secs_f64().ceil())
            }
        };
        let wait = if self.steady { SECOND / 10 } else { reset };
        Answer {
            served,
            left: self.left as u64,
            full: full as u64,
            reset,
            retry_after: (!served && self.says != Says::Nothing).then_some(wait),
        }
    }
}

/// Virtual time.
enum Time {
    Manual(ManualClock),
    /// The paused clock of tokio.
    Tokio(tokio::time::Instant),
}

impl Time {
    fn now(&self) -> Duration {
        match self {
            Self::Manual(clock) => clock.elapsed(),
            Self::Tokio(start) => start.elapsed(),
        }
    }
    async fn sleep(&self, time: Duration) {
        match self {
            Self::Manual(clock) => clock.sleep(time).await,
            Self::Tokio(_) => tokio::time::sleep(time).await,
        }
    }
}

/// The attempts of one task that failed in a row, and the wait that the last answer asked for.
#[derive(Default)]
struct Failures {
    count: u32,
    retry_after: Option<Duration>,
}

/// Exponential, from 100 ms to 10 s, with full jitter; a hint of the server beats it.
async fn back_off(time: &Time, failures: &Failures, seed: &mut u64) {
    if failures.count > 0 {
        let most = (SECOND / 10 * 2_u32.pow(failures.count.min(8) - 1)).min(10 * SECOND);
        let wait = failures
            .retry_after
            .unwrap_or(Duration::from_nanos(next(seed) % most.as_nanos() as u64));
        time.sleep(wait).await;
    }
}

trait Client {
    type Guard;
    async fn before(&self, time: &Time, failures: &Failures, seed: &mut u64) -> Self::Guard;
    fn after(&self, guard: Self::Guard, answer: &Answer, says: Says);
}

/// `Upstream`, if there is one, and a policy.
struct Ours<L: Limiter + 'static> {
    upstream: Option<Arc<Upstream>>,
    policy: Policy<L>,
}

impl<L: Limiter + 'static> Client for Ours<L> {
    type Guard = (Permit<Policy<L>>, Option<Call>);

    async fn before(&self, _: &Time, _: &Failures, _: &mut u64) -> Self::Guard {
        loop {
            let permit = self.policy.admit_owned(1).await.expect("an unbounded queue");
            let Some(upstream) = &self.upstream else {
                return (permit, None);
            };
            if let Some(call) = upstream.begin(&Ask::one()) {
                return (permit, Some(call));
            }
        }
    }

    fn after(&self, (permit, call): Self::Guard, answer: &Answer, says: Says) {
        if let (Some(upstream), Some(call)) = (&self.upstream, call) {
            let mut feedback = match answer.served {
                true => Feedback::default(),
                false => Feedback::throttled(answer.retry_after),
            };
            if says == Says::Fields {
                let quota = RemainingQuota::of_calls(answer.left)
                    .limit(answer.full)
                    .reset(answer.reset);
                let steady = answer.full <= 100;
                feedback = feedback.quota(quota.refill(if steady { Refill::Continuous } else { Refill::AtReset }));
            }
            upstream.observe(&call, &feedback);
        }
        permit.finish(if answer.served {
            Outcome::Success
        } else {
            Outcome::Overload
        });
    }
}

struct ThrottleNet(Throttle<TokioClock>);

impl Client for ThrottleNet {
    type Guard = ();

    async fn before(&self, time: &Time, failures: &Failures, seed: &mut u64) {
        // Its pause holds all tasks; without a hint each backs off by itself.
        if failures.retry_after.is_none() {
            back_off(time, failures, seed).await;
        }
        self.0.acquire().await.expect("no time-out");
    }

    fn after(&self, (): (), answer: &Answer, says: Says) {
        if says == Says::Fields {
            let window = Window {
                limit: Some(answer.full),
                remaining: Some(answer.left),
                reset: Some(answer.reset),
            };
            window.apply(&self.0);
        }
        if let Some(wait) = answer.retry_after {
            self.0.pause_for(wait);
        }
    }
}

/// A loop that tries again.
struct Retries;

impl Client for Retries {
    type Guard = ();
    async fn before(&self, time: &Time, failures: &Failures, seed: &mut u64) {
        back_off(time, failures, seed).await;
    }
    fn after(&self, (): (), _: &Answer, _: Says) {}
}

async fn run<C: Client>(time: &Time, client: &C, server: &RefCell<Server>) {
    let task = async |task: u64| {
        let (mut seed, mut failures) = (task, Failures::default());
        loop {
            let guard = client.before(time, &failures, &mut seed).await;
            // 20 to 80 ms to the server and back.
            time.sleep(Duration::from_micros(10_000 + next(&mut seed) % 30_000))
                .await;
            if time.now() >= END {
                return;
            }
            let (answer, says) = {
                let mut server = server.borrow_mut();
                (server.answer(time.now()), server.says)
            };
            time.sleep(Duration::from_micros(10_000 + next(&mut seed) % 30_000))
                .await;
            client.after(guard, &answer, says);
            failures.count = if answer.served { 0 } else { failures.count + 1 };
            failures.retry_after = answer.retry_after;
        }
    };
    join_all((0..TASKS).map(task)).await;
}

fn manual<C: Client>(client: impl Fn(&ManualClock) -> C, server: &RefCell<Server>) {
    let clock = ManualClock::new();
    let client = client(&clock);
    clock.run(run(&Time::Manual(clock.clone()), &client, server));
}

fn paused<C: Client>(client: C, server: &RefCell<Server>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async { run(&Time::Tokio(tokio::time::Instant::now()), &client, server).await });
}

type Subject = fn(&RefCell<Server>);

fn upstream(clock: &ManualClock) -> Ours<impl Limiter + use<>> {
    let rate = Quota::per_second(1_000);
    let upstream = Arc::new(Upstream::builder().rate(rate).on(clock).build().expect("a rate"));
    let policy = Policy::new(Arc::clone(&upstream).and(TokenBucket::new(rate).on(clock)));
    Ours {
        upstream: Some(upstream),
        policy,
    }
}

fn found(clock: &ManualClock) -> Adaptive<TokenBucket> {
    let bucket = TokenBucket::new(Quota::per_second(10).burst(1)).on(clock);
    let builder = Adaptive::builder(bucket).law(Cubic::new()).bounds(2, 2_000);
    builder.on(clock).build().expect("bounds")
}

fn upstream_and_found_rate(clock: &ManualClock) -> Ours<impl Limiter + use<>> {
    let rate = Quota::per_second(1_000);
    let upstream = Arc::new(Upstream::builder().rate(rate).on(clock).build().expect("a rate"));
    let policy = Policy::new(Arc::clone(&upstream).and(found(clock)));
    Ours {
        upstream: Some(upstream),
        policy,
    }
}

fn main() {
    let subjects: [(&str, Subject); 5] = [
        ("Upstream", |server| manual(upstream, server)),
        ("a rate that finds itself", |server| {
            let client = |clock: &ManualClock| Ours {
                upstream: None,
                policy: Policy::new(found(clock)),
            };
            manual(client, server);
        }),
        ("Upstream and that rate", |server| {
            manual(upstream_and_found_rate, server);
        }),
        ("throttle-net", |server| {
            let throttle = Throttle::builder()
                .per_second(1_000)
                .burst(1_000)
                .clock(TokioClock)
                .build();
            paused(ThrottleNet(throttle), server);
        }),
        ("a loop of retries", |server| paused(Retries, server)),
    ];
    println!("| server | it says | client | used | refused |\n|---|---|---|---|---|");
    for steady in [true, false] {
        for says in [Says::Fields, Says::RetryAfter, Says::Nothing] {
            for (name, subject) in &subjects {
                let server = RefCell::new(Server::new(steady, says));
                subject(&server);
                let server = server.into_inner();
                // What the server allows, without the second after the halving.
                let allowed = 100.0 * 400.0 + 50.0 * 199.0;
                let kind = if steady { "bucket" } else { "windows" };
                let used = server.served as f64 / allowed * 100.0;
                let refused = server.refused as f64 / (server.served + server.refused) as f64 * 100.0;
                println!("| {kind} | {says:?} | {name} | {used:.1} % | {refused:.2} % |");
            }
        }
    }
}
