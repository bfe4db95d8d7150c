//! What a version does to legs that have something taken: no more, and no less, than the stated rule.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;
use tollgate::{
    Ask, Clock, FixedWindow, Inherit, LeakyBucket, Limiter, LimiterExt, ManualClock, Outcome, Quota, SlidingLog,
    SlidingWindow, TokenBucket, Warmup,
};
use tollgate_config::{LegKind, LegSpec, PolicySpec, Reload, ReloadablePolicy};

const RULES: [Inherit; 3] = [Inherit::AsIs, Inherit::Proportional, Inherit::Reset];

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// How many times `limiter` gives three at this instant: up to 20, since one without a limit never ends.
fn gives(limiter: &impl Limiter) -> usize {
    let admitted = std::iter::from_fn(|| limiter.try_admit(3).ok().map(|permit| permit.finish(Outcome::Success)));
    admitted.take(20).count()
}

/// `taken` of `limiter`, then `change`, and what it gives then.
fn directly<L: Limiter>(limiter: L, taken: u64, change: impl FnOnce(&L)) -> usize {
    limiter.try_admit(taken).unwrap().finish(Outcome::Success);
    change(&limiter);
    gives(&limiter)
}

/// The same of a limiter of its own that is changed by its own methods from `from` to `to`.
fn by_itself(from: &LegKind, to: &LegKind, taken: u64, inherit: Inherit, clock: &Clock) -> usize {
    match (from.clone(), to.clone()) {
        (LegKind::TokenBucket { quota: from }, LegKind::TokenBucket { quota: to }) => {
            let bucket = TokenBucket::new(from).on(clock);
            directly(bucket, taken, |bucket| bucket.set_quota(to, inherit))
        }
        (
            LegKind::LeakyBucket {
                quota: from,
                slack: before,
            },
            LegKind::LeakyBucket { quota: to, slack },
        ) => {
            let bucket = LeakyBucket::new(from).slack(before).unwrap().on(clock);
            directly(bucket, taken, |bucket| {
                bucket.set_quota(to, slack, inherit).unwrap();
            })
        }
        (
            LegKind::Warmup {
                quota: from, period, ..
            },
            LegKind::Warmup { quota: to, .. },
        ) => {
            let warmup = Warmup::new(from, period).unwrap().on(clock);
            directly(warmup, taken, |warmup| warmup.set_quota(to, inherit).unwrap())
        }
        (LegKind::FixedWindow { limit: from, window }, LegKind::FixedWindow { limit, .. }) => {
            let fixed = FixedWindow::new(from, window).unwrap().on(clock);
            directly(fixed, taken, |fixed| fixed.set_limit(limit, inherit))
        }
        (
            LegKind::SlidingWindow {
                limit: from, window, ..
            },
            LegKind::SlidingWindow { limit, .. },
        ) => {
            let sliding = SlidingWindow::new(from, window).unwrap().on(clock);
            directly(sliding, taken, |sliding| sliding.set_limit(limit, inherit))
        }
        (LegKind::SlidingLog { limit: from, window }, LegKind::SlidingLog { limit, .. }) => {
            let log = SlidingLog::new(from, window).unwrap().on(clock);
            directly(log, taken, |log| log.set_limit(limit, inherit))
        }
        other => panic!("{other:?}"),
    }
}

/// From which numbers to which: each row has one number that becomes stricter, one that becomes looser, or both.
fn rows() -> Vec<(LegKind, LegKind)> {
    let leaky = |text, slack| {
        let quota = quota(text);
        LegKind::LeakyBucket { quota, slack }
    };
    let warmup = |text| LegKind::Warmup {
        quota: quota(text),
        period: secs(3_600),
        cold_factor: 3,
    };
    let bucket = |text| LegKind::TokenBucket { quota: quota(text) };
    let mut rows = vec![
        (bucket("1/h burst 20"), bucket("2/h burst 12")),
        (bucket("2/h burst 12"), bucket("1/h burst 20")),
        (bucket("2/h burst 20"), bucket("1/h burst 12")),
        (bucket("1/h burst 12"), bucket("2/h burst 20")),
        (bucket("1/h burst 12"), bucket("unlimited")),
        (leaky("1/h", 19), leaky("2/h", 11)),
        (leaky("2/h", 11), leaky("1/h", 19)),
        (warmup("20/s burst 40"), warmup("30/s burst 20")),
        (warmup("30/s burst 20"), warmup("20/s burst 40")),
    ];
    for (from, to) in [(20, 12), (12, 20)] {
        let window = secs(50);
        rows.push((
            LegKind::FixedWindow { limit: from, window },
            LegKind::FixedWindow { limit: to, window },
        ));
        rows.push((
            LegKind::SlidingWindow {
                limit: from,
                window,
                segments: 64,
            },
            LegKind::SlidingWindow {
                limit: to,
                window,
                segments: 64,
            },
        ));
        rows.push((
            LegKind::SlidingLog { limit: from, window },
            LegKind::SlidingLog { limit: to, window },
        ));
    }
    rows
}

/// Given legs of every kind of rate of which all but two units are taken, and a queue of callers for three each, when a
/// version comes, then as many of the queue are admitted at that instant as a limiter gives that is changed by hand: by each
/// rule, whichever of the numbers become stricter. A reset gives one full bucket, and not one for each step of the change.
#[test]
fn a_version_grants_exactly_its_inherit_rule() {
    for (from, to) in rows() {
        for inherit in RULES {
            let clock = ManualClock::new();
            let leg = |rule: &LegKind| {
                PolicySpec::new([LegSpec {
                    inherit,
                    ..LegSpec::new("leg", rule.clone())
                }])
            };
            let policy = leg(&from).build(&clock).unwrap();
            let taken = match &*from.name() {
                // Warm-up admits whatever is asked of a cold one, and pays for it.
                "warmup" => 10,
                _ => policy.limiter().leg("leg").unwrap().available().unwrap() - 2,
            };
            policy.try_admit(taken).unwrap().finish(Outcome::Success);
            let mut queue: Vec<_> = (0..20).map(|_| Box::pin(policy.admit(3))).collect();
            let mut context = Context::from_waker(Waker::noop());
            assert!(
                queue
                    .iter_mut()
                    .all(|wait| wait.as_mut().poll(&mut context).is_pending())
            );
            policy.apply(leg(&to)).unwrap();
            let mut admitted = 0;
            for wait in &mut queue {
                if let Poll::Ready(permit) = wait.as_mut().poll(&mut context) {
                    permit.unwrap().finish(Outcome::Success);
                    admitted += 1;
                }
            }
            let mut expected = by_itself(&from, &to, taken, inherit, &ManualClock::new());
            if inherit == Inherit::Reset && from != to {
                expected = gives(&*fresh(&to));
            }
            assert_eq!(admitted, expected, "{inherit:?}: {from:?} -> {to:?}");
        }
    }
}

/// A limiter of its own that has just been made.
fn fresh(rule: &LegKind) -> Box<ReloadablePolicy> {
    let spec = PolicySpec::new([LegSpec::new("fresh", rule.clone())]);
    Box::new(spec.build(&ManualClock::new()).unwrap())
}

/// Through how many changes an attempt may last before what it took and gives up again, to ask the new version, does not come
/// back: see [`permits_held_through_changes_come_back_by_their_rules`].
fn lasting(inherit: Inherit) -> u64 {
    match inherit {
        Inherit::Reset => 1,
        _ => 17,
    }
}

/// Given a bucket that gains nothing and threads that take whatever there is, when 250 versions change it by each rule, then no
/// more is admitted than the rules give, added up; and no less, but for one for each attempt that held it through changes by
/// which it does not come back.
#[test]
fn under_load_no_more_is_admitted_than_the_rules_give() {
    const RELOADS: u64 = 250;
    for inherit in RULES {
        let leg = |burst: u64| {
            let rule = LegKind::TokenBucket {
                quota: quota(&format!("zero burst {burst}")),
            };
            PolicySpec::new([LegSpec {
                inherit,
                ..LegSpec::new("budget", rule)
            }])
        };
        let (small, large) = (40, 100);
        let policy = leg(large).build(&Clock::real()).unwrap();
        let stop = AtomicBool::new(false);
        // How often the bucket was seen empty, once before each change: who holds something through a change took it before.
        let emptied = AtomicU64::new(0);
        let attempts = || {
            let (mut admitted, mut lost) = (0, 0);
            while !stop.load(Ordering::SeqCst) {
                let before = emptied.load(Ordering::SeqCst);
                let attempt = policy.try_admit(Ask::one());
                lost += (emptied.load(Ordering::SeqCst) - before) / lasting(inherit);
                match attempt {
                    Ok(permit) => {
                        admitted += 1;
                        permit.finish(Outcome::Success);
                    }
                    Err(_) => thread::yield_now(),
                }
            }
            (admitted, lost)
        };
        let empty = || {
            while policy.limiter().leg("budget").unwrap().available() != Some(0) {
                thread::yield_now();
            }
            emptied.fetch_add(1, Ordering::SeqCst);
        };
        let (admitted, lost) = thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(attempts)).collect();
            for n in 0..RELOADS {
                empty();
                policy.apply(leg(if n % 2 == 0 { small } else { large })).unwrap();
            }
            empty();
            stop.store(true, Ordering::SeqCst);
            let each = threads.into_iter().map(|thread| thread.join().unwrap());
            each.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
        });
        // It was empty at each change, so that only this rule gives.
        let given = match inherit {
            Inherit::Reset => RELOADS / 2 * (large + small),
            _ => 0,
        };
        let most = large + given;
        assert!(
            (most.saturating_sub(lost)..=most).contains(&admitted),
            "{inherit:?}: {admitted} of {most}, of which at most {lost} were held through changes"
        );
    }
}

/// Given two who hand in versions at once, then each learns what its own have changed, and none is passed over.
#[test]
fn versions_that_are_handed_in_at_once_come_one_after_the_other() {
    const EACH: usize = 200;
    let leg = |limit| PolicySpec::new([LegSpec::new("permits", LegKind::Semaphore { limit })]);
    let policy = leg(1).build(&Clock::real()).unwrap();
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            let policy = policy.clone();
            thread::spawn(move || {
                let apply = |n: usize| policy.apply(leg(1 + thread * EACH + n)).unwrap();
                (0..EACH).map(apply).collect::<Vec<_>>()
            })
        })
        .collect();
    let mut versions: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    versions.sort_unstable();
    assert!(versions.into_iter().eq(2..2 * EACH as u64 + 2));
    assert_eq!(policy.limiter().version(), 2 * EACH as u64 + 1);
}
