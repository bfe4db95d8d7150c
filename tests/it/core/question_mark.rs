//! The error of every verb works with `?` in a function that returns a boxed error, and is found in it.

use std::error::Error;
use std::time::Duration;
use tollgate::keyed::{FairBudget, KeyedRate};
use tollgate::policy::{Partitions, PartitionsError};
use tollgate::{
    AcquireError, AcquireTimeoutError, Cost, FixedWindow, Inherit, Keyed, KeysFull, LeakyBucket, LimiterExt,
    ManualClock, Policy, PolicyError, Quota, QuotaError, RateError, Refusal, Semaphore, SlidingLog, SlidingWindow,
    TokenBucket, TryAcquireError, UnknownCost, Warmup,
};

type Ended = Result<(), Box<dyn Error + Send + Sync>>;

/// True if the error or one of its sources is an `E`.
fn holds<E: Error + Send + Sync + 'static>(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (**error).source()).any(|error| error.is::<E>())
}

type Found = fn(&(dyn Error + 'static)) -> bool;

/// Calls the verb, which fails.
async fn call(verb: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let clock = ManualClock::new();
    let shut = || Semaphore::new(0);
    let policy = Policy::builder().limit(shut()).max_queue(0).on(&clock).build()?;
    match verb {
        "Policy::try_admit" => policy.try_admit(1)?.forget(),
        "Policy::admit" => policy.admit(1).await?.forget(),
        "Policy::admit_owned" => policy.admit_owned(1).await?.forget(),
        "Policy::admit_blocking" => policy.admit_blocking(1)?.forget(),
        "Policy::run" => policy.run(1, async || Ok::<_, std::fmt::Error>(())).await?,
        "LimiterExt::try_admit" => shut().try_admit(1)?.forget(),
        "TokenBucket::try_acquire" => TokenBucket::new(Quota::zero()).try_acquire(1)?,
        "LeakyBucket::try_acquire" => LeakyBucket::new(Quota::zero()).try_acquire(1)?,
        "SlidingWindow::try_acquire" => SlidingWindow::new(0, Duration::from_secs(1))?.try_acquire(1)?,
        "KeyedRate::try_acquire" => KeyedRate::<u8>::new(0, Quota::per_second(1)).try_acquire(&1, 1)?,
        "FairShare::try_acquire" => FairBudget::new(Quota::zero()).share().try_acquire(1)?,
        "Keyed::get" => drop(Keyed::new(0, |_: &u8| Semaphore::new(1)).get(&1)?),
        "Semaphore::try_acquire" => shut().try_acquire()?.forget(),
        "Semaphore::acquire" => {
            let closed = shut();
            closed.close();
            closed.acquire().await?.forget();
        }
        "Semaphore::acquire_many_until" => shut().acquire_many_until(1, &clock, clock.now()).await?.forget(),
        other => panic!("{other} is not called"),
    }
    Ok(())
}

fn check(verbs: &[(&str, Found)], call: impl Fn(&str) -> Ended) {
    for (verb, found) in verbs {
        let error = call(verb).expect_err(verb);
        assert!(found(&*error), "{verb}: {error:?}");
    }
}

#[test]
fn the_question_mark_boxes_the_error_of_every_verb() {
    let verbs: [(&str, Found); 15] = [
        ("Policy::try_admit", holds::<Refusal>),
        ("Policy::admit", holds::<Refusal>),
        ("Policy::admit_owned", holds::<Refusal>),
        ("Policy::admit_blocking", holds::<Refusal>),
        ("Policy::run", holds::<Refusal>),
        ("LimiterExt::try_admit", holds::<Refusal>),
        ("TokenBucket::try_acquire", holds::<Refusal>),
        ("LeakyBucket::try_acquire", holds::<Refusal>),
        ("SlidingWindow::try_acquire", holds::<Refusal>),
        ("KeyedRate::try_acquire", holds::<Refusal>),
        ("FairShare::try_acquire", holds::<Refusal>),
        ("Keyed::get", holds::<KeysFull>),
        ("Semaphore::try_acquire", holds::<TryAcquireError>),
        ("Semaphore::acquire", holds::<AcquireError>),
        ("Semaphore::acquire_many_until", holds::<AcquireTimeoutError>),
    ];
    check(&verbs, |verb| ManualClock::new().run(call(verb)));
}

/// Makes or changes something with a value that it refuses.
fn set(verb: &str) -> Ended {
    let second = Duration::from_secs(1);
    let slow = Quota::new(1, Duration::from_secs(365 * 86_400))?;
    match verb {
        "Quota::new" => _ = Quota::new(0, Duration::ZERO)?,
        "Quota::with_burst" => _ = Quota::per_second(1).with_burst(u64::MAX)?,
        "a quota's text" => _ = "9 lives".parse::<Quota>()?,
        "FixedWindow::new" => drop(FixedWindow::new(1, Duration::ZERO)?),
        "SlidingWindow::segments" => drop(SlidingWindow::new(1, second)?.segments(0)?),
        "SlidingLog::new" => drop(SlidingLog::new(1, Duration::MAX)?),
        "LeakyBucket::slack" => drop(LeakyBucket::new(slow).slack(u64::MAX)?),
        "LeakyBucket::set_quota" => LeakyBucket::new(Quota::per_second(1_000_000_000))
            .slack(1 << 30)?
            .set_quota(slow, 1 << 30, Inherit::AsIs)?,
        "Warmup::cold_factor" => drop(Warmup::new(Quota::per_second(1), second)?.cold_factor(0)?),
        "Warmup::set_quota" => Warmup::new(slow, Duration::from_secs(86_400))?
            .set_quota(Quota::per_second(1_000_000_000), Inherit::AsIs)?,
        "Policy::builder" => {
            let (one, other) = (ManualClock::new(), ManualClock::new());
            let rate = |clock: &ManualClock| TokenBucket::new(Quota::per_second(1)).on(clock);
            drop(Policy::builder().limit(rate(&one)).limit(rate(&other)).build()?);
        }
        "Keyed::entry" => drop(Keyed::new(0, |_: &u8| Semaphore::new(1)).entry(&1)?),
        "Partitions::set_parts" => Partitions::guaranteed(4, &[0.5, 0.5])?.set_parts(&[1.0])?,
        "Permit::settle" => _ = Semaphore::new(1).try_admit(1)?.settle(Cost::new("tokens"), 1)?,
        other => panic!("{other} is not called"),
    }
    Ok(())
}

#[test]
fn the_question_mark_boxes_the_error_of_every_setter_and_builder() {
    let verbs: [(&str, Found); 14] = [
        ("Quota::new", holds::<QuotaError>),
        ("Quota::with_burst", holds::<QuotaError>),
        ("a quota's text", holds::<QuotaError>),
        ("FixedWindow::new", holds::<RateError>),
        ("SlidingWindow::segments", holds::<RateError>),
        ("SlidingLog::new", holds::<RateError>),
        ("LeakyBucket::slack", holds::<QuotaError>),
        ("LeakyBucket::set_quota", holds::<QuotaError>),
        ("Warmup::cold_factor", holds::<RateError>),
        ("Warmup::set_quota", holds::<RateError>),
        ("Policy::builder", holds::<PolicyError>),
        ("Keyed::entry", holds::<KeysFull>),
        ("Partitions::set_parts", holds::<PartitionsError>),
        ("Permit::settle", holds::<UnknownCost>),
    ];
    check(&verbs, set);
}

/// Given tasks that are not `Sync`, since they hold a receiver.
#[cfg(feature = "pool")]
mod pools {
    use super::{Ended, Found, Refusal, check, holds};
    use std::sync::mpsc;
    use tollgate::pool::{GroupError, RejectReason, TaskError};
    use tollgate::{Policy, Semaphore, WorkerPool};

    fn call(verb: &str) -> Ended {
        let closed = WorkerPool::builder().workers(1).build()?;
        closed.close();
        let (_sends, receives) = mpsc::channel::<()>();
        let task = move || receives.try_iter().count();
        match verb {
            "submit" => drop(closed.submit(task)?),
            "try_submit" => drop(closed.try_submit(task)?),
            "submit_timeout" => drop(closed.submit_timeout(task, super::Duration::ZERO)?),
            "execute" => closed.execute(move || _ = task())?,
            "run" => _ = closed.run(task)?,
            "Group::submit" => _ = closed.group::<usize, std::fmt::Error>().submit(|| Ok(1))?,
            "join" | "Group::join" => {
                let refuses = Policy::builder().limit(Semaphore::new(0)).max_queue(0).build()?;
                let pool = WorkerPool::builder().workers(1).admit_by(refuses).build()?;
                if verb == "join" {
                    pool.submit(task)?.join()?;
                } else {
                    let mut group = pool.group::<usize, std::fmt::Error>();
                    group.submit(move || Ok(task()))?;
                    group.join()?;
                }
            }
            "a panic" => WorkerPool::builder()
                .workers(1)
                .build()?
                .run::<(), _>(|| panic!("on purpose"))?,
            other => panic!("{other} is not called"),
        }
        Ok(())
    }

    #[test]
    fn the_question_mark_boxes_the_errors_of_a_pool() {
        let verbs: [(&str, Found); 9] = [
            ("submit", holds::<RejectReason>),
            ("try_submit", holds::<RejectReason>),
            ("submit_timeout", holds::<RejectReason>),
            ("execute", holds::<RejectReason>),
            ("run", holds::<TaskError>),
            ("Group::submit", holds::<RejectReason>),
            ("join", holds::<Refusal>),
            ("Group::join", |error| {
                holds::<Refusal>(error) && holds::<GroupError<std::fmt::Error>>(error)
            }),
            ("a panic", holds::<TaskError>),
        ];
        check(&verbs, call);
    }

    #[cfg(feature = "tokio")]
    #[tokio::test]
    async fn the_question_mark_boxes_the_errors_of_a_task_pool() {
        async fn call(run: bool) -> Ended {
            let closed = tollgate::pool::TaskPool::builder(1).build()?;
            closed.close();
            if run {
                closed.run(async {}).await?;
            }
            drop(closed.submit(async {}).await?);
            Ok(())
        }
        assert!(holds::<RejectReason>(&*call(false).await.unwrap_err()));
        assert!(holds::<TaskError>(&*call(true).await.unwrap_err()));
    }
}

#[cfg(feature = "remote")]
#[test]
fn the_question_mark_boxes_the_errors_of_remote_permits() {
    use tollgate::remote::{Key, Memory, Remote, RemoteError};
    async fn call(verb: &str, clock: &ManualClock) -> Ended {
        let (key, store) = (
            Key::new("tests.question_mark")?,
            std::sync::Arc::new(Memory::new(clock)),
        );
        let remote = Remote::permits(key, 1).on(clock).in_place(store)?;
        match verb {
            "acquire" => remote.acquire(2).await?.forget(),
            "acquire_now" => remote.acquire_now(2).await?.forget(),
            "try_acquire" => remote.try_acquire(2)?.forget(),
            "acquire_owned" => std::sync::Arc::new(remote).acquire_owned(2).await?.forget(),
            "set_limit" => remote.set_limit(u64::MAX).await?,
            other => panic!("{other} is not called"),
        }
        Ok(())
    }
    let verbs: [(&str, Found); 5] = [
        ("acquire", holds::<Refusal>),
        ("acquire_now", holds::<Refusal>),
        ("try_acquire", holds::<Refusal>),
        ("acquire_owned", holds::<Refusal>),
        ("set_limit", holds::<RemoteError>),
    ];
    let clock = ManualClock::new();
    check(&verbs, |verb| clock.run(call(verb, &clock)));
}
