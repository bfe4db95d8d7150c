//! An hour of real LLM requests, of twenty modest tenants and one that floods, behind one budget of tokens per second.
//!
//! First all share one queue for one bucket: the flood fills it, and every tenant waits or is refused. Then each tenant has a policy of its
//! own, made when it is first seen: a rate of requests, with overrides, and a fair share of the budget. The flood gets the
//! rest, and no other tenant waits for it. Time is virtual, so the numbers are exact.
//!
//! ```text
//! cargo run --release --example tenants
//! ```

#[path = "../gateway/trace.rs"]
#[allow(unreachable_pub)]
mod trace;

use futures::future::{join, join_all};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tollgate::keyed::{FairBudget, Shared};
use tollgate::{
    Ask, Cost, Inherit, Instant, Keyed, KeysFull, LimiterExt, ManualClock, Policy, Quota, Refusal, TokenBucket,
};
use trace::Request;

const TOKENS: Cost = Cost::new("tokens");
/// Tenants are numbered. This one sends six requests of ten:
const FLOOD: u32 = 0;
/// On trial for the first half of the hour, with a rate of its own:
const TRIAL: u32 = 1;
const MODEST: std::ops::Range<u32> = 2..21;

/// The quota of the upstream, for all tenants together. The trace wants a third more.
const BUDGET: u64 = 4_000;
/// More than the largest request of the trace.
const BURST: u64 = 16_000;
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Whose request is it? The trace does not say, so its number decides.
fn tenant_of(request: usize) -> u32 {
    let mixed = (request as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    match mixed % 100 {
        0..60 => FLOOD,
        _ => (mixed / 100 % 20) as u32 + 1,
    }
}

/// The results of one tenant's requests.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    asked: u64,
    admitted: u64,
    tokens: u64,
    waited: Duration,
    /// Of the first half of the hour.
    early: u64,
}

/// Sends the trace through `admit`, each request at its time.
async fn replay<F>(clock: &ManualClock, trace: &[Request], admit: impl Fn(u32, Ask) -> F) -> Vec<Served>
where
    F: Future<Output = Result<(), Refusal>>,
{
    let served = RefCell::new(vec![Served::default(); MODEST.end as usize]);
    let start = clock.now();
    let half = (trace[trace.len() - 1].at - trace[0].at) / 2;
    let requests = trace.iter().enumerate().map(|(number, request)| {
        let (served, admit) = (&served, &admit);
        async move {
            let tenant = tenant_of(number);
            let after = request.at - trace[0].at;
            let at = clock.after(start, Duration::from_nanos(after));
            clock.sleep_until(at).await;
            let tokens = request.context + request.generated;
            let outcome = admit(tenant, Ask::one().cost(TOKENS, tokens)).await;
            let entry = &mut served.borrow_mut()[tenant as usize];
            entry.asked += 1;
            if outcome.is_ok() {
                entry.admitted += 1;
                entry.early += u64::from(after < half);
                entry.tokens += tokens;
                entry.waited += clock.between(at, clock.now());
            }
        }
    });
    join_all(requests).await;
    served.into_inner()
}

/// One bucket, and one line.
fn in_one_line(trace: &[Request]) -> Vec<Served> {
    let clock = ManualClock::new();
    let policy = Policy::builder()
        .limit(
            TokenBucket::new(Quota::per_second(BUDGET).burst(BURST))
                .on(&clock)
                .per(TOKENS),
        )
        .max_wait(MAX_WAIT)
        .build()
        .expect("one leg on one clock");
    let policy = &policy;
    clock.run(replay(&clock, trace, |_, ask| async move {
        policy.admit(ask).await.map(drop)
    }))
}

/// The request rate of each tenant, unless it is changed at run time.
fn requests_of(tenant: &u32) -> Quota {
    match *tenant {
        TRIAL => Quota::per_minute(1).burst(2),
        _ => Quota::per_minute(600).burst(100),
    }
}

/// A policy for each tenant, over its own rate and its share of the budget.
fn by_tenant(trace: &[Request]) -> Vec<Served> {
    let clock = ManualClock::new();
    let budget = FairBudget::new(Quota::per_second(BUDGET).burst(BURST)).on(&clock);
    let buckets = clock.clone();
    let requests = Arc::new(Keyed::new(1_000, move |tenant: &u32| {
        TokenBucket::new(requests_of(tenant)).on(&buckets)
    }));
    let rates = Arc::clone(&requests);
    let tenants = Keyed::try_new(1_000, move |tenant: &u32| -> Result<Policy<_>, KeysFull> {
        // The bucket is shared with the map of rates, so that it can be changed there. If that map is full, a tenant is
        // refused: with a bucket outside the map it would bypass its own limit.
        let rate = Shared::from(rates.entry(tenant)?);
        let policy = Policy::builder()
            .limit(rate.named("requests"))
            .limit(budget.share().per(TOKENS).named("budget"))
            .max_wait(MAX_WAIT)
            .build()
            .expect("both legs are on one clock");
        Ok(policy)
    });
    let upgrade = async {
        let half = (trace[trace.len() - 1].at - trace[0].at) / 2;
        clock
            .sleep_until(clock.after(Instant::ZERO, Duration::from_nanos(half)))
            .await;
        let trial = requests.entry(&TRIAL).expect("there is room for every tenant");
        trial.set_quota(Quota::per_minute(600).burst(100), Inherit::AsIs);
    };
    let replay = replay(&clock, trace, |tenant, ask| {
        let policy = tenants.get(&tenant).map_err(Refusal::from);
        async move { policy?.admit(ask).await.map(drop) }
    });
    let (served, ()) = clock.run(join(replay, upgrade));

    // When the budget is full again, no tenant is owed anything, and all but the changed rate may be evicted.
    clock.advance(Duration::from_secs(3_600));
    let kept = tenants.len();
    assert_eq!((kept, tenants.evict_as_new()), (MODEST.end as usize, kept));
    assert_eq!((requests.evict_as_new(), requests.len()), (kept - 1, 1));
    served
}

/// The mean wait of those that were admitted, and the share of requests that were not.
fn of(served: &[Served]) -> (Duration, f64) {
    let sum = |part: fn(&Served) -> u64| served.iter().map(part).sum::<u64>();
    let waited: Duration = served.iter().map(|tenant| tenant.waited).sum();
    let admitted = sum(|tenant| tenant.admitted).max(1);
    let refused = 1.0 - admitted as f64 / sum(|tenant| tenant.asked) as f64;
    (waited.div_f64(admitted as f64), refused)
}

fn report(name: &str, served: &[Served], seconds: f64) {
    println!("{name}");
    let modest = &served[MODEST.start as usize..];
    for (group, tenants) in [
        ("the flood", &served[..1]),
        ("on trial", &served[1..2]),
        ("modest", modest),
    ] {
        let tokens: u64 = tenants.iter().map(|tenant| tenant.tokens).sum();
        let (wait, refused) = of(tenants);
        println!(
            "  {group:<10} {:>6.0} tokens/s  mean wait {:>9.3} s  refused {:>5.1} %",
            tokens as f64 / seconds,
            wait.as_secs_f64(),
            refused * 100.0
        );
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/azure_llm_2023_code.csv.gz");
    let trace = trace::read(&data)?;
    let seconds = Duration::from_nanos(trace[trace.len() - 1].at - trace[0].at).as_secs_f64();
    let wanted: u64 = trace.iter().map(|request| request.context + request.generated).sum();
    println!(
        "{} requests want {:.0} tokens/s of {BUDGET}",
        trace.len(),
        wanted as f64 / seconds
    );

    let one_line = in_one_line(&trace);
    let fair = by_tenant(&trace);
    report("one line for all", &one_line, seconds);
    report(
        "a policy for each tenant, and a fair share of the budget",
        &fair,
        seconds,
    );

    let modest = |served: &[Served]| of(&served[MODEST.start as usize..]);
    let ((before, lost), (after, refused)) = (modest(&one_line), modest(&fair));
    assert!(
        lost > 0.3,
        "in one line the flood costs modest tenants a third of their requests: {lost}"
    );
    assert!(
        refused < 0.02,
        "with a share of their own they lose those that no share could hold: {refused}"
    );
    assert!(
        after * 15 < before,
        "and wait a fifteenth of the time: {after:?} instead of {before:?}"
    );
    // Nothing lies idle: the flood gets the rest.
    let total = |served: &[Served]| served.iter().map(|tenant| tenant.tokens).sum::<u64>() as f64;
    assert!(total(&fair) > 0.98 * total(&one_line));
    // No more than the budget, and a burst for each.
    assert!(total(&fair) <= BUDGET as f64 * (seconds + MAX_WAIT.as_secs_f64()) + (BURST * 21) as f64);
    // The trial admits one a minute, until it ends.
    let trial = &fair[TRIAL as usize];
    assert!(
        trial.early <= 34 && trial.admitted - trial.early > 2 * trial.early,
        "{trial:?}"
    );
    println!(
        "modest tenants wait {:.0} times less",
        before.as_secs_f64() / after.as_secs_f64().max(1e-3)
    );
    Ok(())
}
