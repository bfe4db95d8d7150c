//! Several queues that wait at one limiter: they take turns, whatever the limiter is and however many wait in each.

use std::cell::{Cell, RefCell};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tollgate::policy::Partitions;
use tollgate::{FixedWindow, Limiter, LimiterExt, ManualClock, Policy, Quota, Reason, Semaphore, TokenBucket};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Asks `policy` again as soon as it is admitted, until `over`, and writes `name` down each time.
async fn asks<L: Limiter + 'static>(
    policy: &Policy<L>,
    name: char,
    served: &RefCell<Vec<char>>,
    clock: &ManualClock,
    over: Duration,
) {
    while clock.elapsed() < over {
        policy.admit(1).await.unwrap().forget();
        served.borrow_mut().push(name);
    }
}

/// The most times in a row that `name` was passed by others.
fn passed(served: &[char], name: char) -> usize {
    let runs = served.split(|&other| other == name).map(<[char]>::len);
    runs.max().unwrap_or(0)
}

/// Given a bucket of one token a second, three that ask again and again in a policy's queue and one in its bypass queue, or
/// the other way round: the two queues get every other token.
#[test]
fn a_policy_and_its_bypass_queue_take_turns_at_a_rate() {
    for (queued, bypassing) in [(3, 1), (1, 3), (1, 1)] {
        let clock = ManualClock::new();
        let policy = Policy::new(TokenBucket::new(Quota::per_second(1).burst(1)).on(&clock));
        let bypass = policy.bypass_queue(1_000_000 * SECOND);
        let served = RefCell::new(Vec::new());
        let over = 1_000 * SECOND;
        clock.run(async {
            let line = (0..queued).map(|_| asks(&policy, 'q', &served, &clock, over));
            let others = (0..bypassing).map(|_| asks(&bypass, 'l', &served, &clock, over));
            futures::join!(futures::future::join_all(line), futures::future::join_all(others));
        });
        let served = served.into_inner();
        // As long as all ask.
        let served = &served[..1_000];
        let runs = (passed(served, 'q'), passed(served, 'l'));
        assert!(runs.0 <= 2 && runs.1 <= 2, "{queued} and {bypassing}: {runs:?}");
    }
}

/// Given one in a queue, and others that try again and again without waiting, when more tokens are wanted than come between
/// two tries, then the one that waits is admitted at its promised instant, and the others afterwards.
#[test]
fn a_try_takes_nothing_from_a_waiting_queue() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(10).burst(5)).on(&clock));
    let policy = Policy::new(Arc::clone(&bucket));
    bucket.try_acquire(5).unwrap();
    let mut large = pin!(policy.admit(5));
    assert!(poll(large.as_mut()).is_pending());
    for _ in 0..499 {
        clock.advance(MS);
        let refused = bucket.try_acquire(1).unwrap_err();
        // Behind the five that are waited for.
        assert_eq!(refused.retry_after(), Some(600 * MS - clock.elapsed()));
        assert_eq!((bucket.try_admit(1).is_err(), bucket.acquire_up_to(3)), (true, 0));
        assert!(bucket.try_admit(0).is_ok());
    }
    clock.advance(MS);
    assert!(matches!(poll(large), Poll::Ready(Ok(_))));
    clock.advance(100 * MS);
    assert!(bucket.try_acquire(1).is_ok());
}

/// Given the heads of two queues, due after one second and after two, when the first is dropped, then the other takes its
/// turn, and is admitted after one.
#[test]
fn a_head_that_leaves_passes_its_turn_on() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
    let policies = [0, 1].map(|_| Policy::new(Arc::clone(&bucket)));
    let mut first = Box::pin(policies[0].admit(1));
    let mut second = Box::pin(policies[1].admit(1));
    bucket.try_acquire(1).unwrap();
    assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
    assert_eq!(bucket.try_acquire(1).unwrap_err().retry_after(), Some(3 * SECOND));
    drop(first);
    assert_eq!(bucket.try_acquire(1).unwrap_err().retry_after(), Some(2 * SECOND));
    clock.advance(SECOND - Duration::from_nanos(1));
    assert!(poll(second.as_mut()).is_pending());
    clock.advance(Duration::from_nanos(1));
    assert!(poll(second.as_mut()).is_ready());
}

/// Given a queue whose heads give up before they are admitted, then the next of it has the turn that they had.
#[test]
fn the_turn_belongs_to_the_queue_and_not_to_its_head() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
    let policies = [0, 1].map(|_| Policy::new(Arc::clone(&bucket)));
    bucket.try_acquire(1).unwrap();
    let mut heads: Vec<_> = (0..3).map(|_| Box::pin(policies[0].admit(1))).collect();
    let mut other = pin!(policies[1].admit(1));
    assert!(poll(heads[0].as_mut()).is_pending() && poll(other.as_mut()).is_pending());
    assert!(heads[1..].iter_mut().all(|head| poll(head.as_mut()).is_pending()));
    drop(heads.drain(..2));
    clock.advance(SECOND);
    assert!(poll(other.as_mut()).is_pending());
    assert!(poll(heads[0].as_mut()).is_ready());
    clock.advance(SECOND);
    assert!(poll(other.as_mut()).is_ready());
}

/// Given a policy that wants a token and a permit, which is not free, and another that wants tokens alone, then the first
/// holds up nothing while it waits for its permit.
#[test]
fn a_queue_that_waits_for_another_leg_gives_its_turn_up() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
    let permit = Arc::new(Semaphore::new(1));
    let held = permit.try_acquire().unwrap();
    let both = Policy::new(Arc::clone(&bucket).and(Arc::clone(&permit)));
    let alone = Policy::new(Arc::clone(&bucket));
    bucket.try_acquire(1).unwrap();
    let mut waits = Box::pin(both.admit(1));
    assert!(poll(waits.as_mut()).is_pending());
    for _ in 0..10 {
        let mut token = pin!(alone.admit(1));
        assert!(poll(token.as_mut()).is_pending());
        clock.advance(SECOND);
        // Its turn comes, and it finds no permit.
        assert!(poll(waits.as_mut()).is_pending());
        assert!(poll(token.as_mut()).is_ready());
    }
    clock.advance(SECOND);
    drop(held);
    assert!(poll(waits.as_mut()).is_ready());
    assert_eq!(permit.in_use(), 0);
}

/// Given a window that lets in ten at an instant, and two queues of twenty, then both get five of each window.
#[test]
fn queues_take_turns_within_a_window() {
    let clock = ManualClock::new();
    let window = Arc::new(FixedWindow::new(10, SECOND).unwrap().on(&clock));
    let policies = [0, 1].map(|_| Policy::new(Arc::clone(&window)));
    assert_eq!(window.acquire_up_to(10), 10);
    let served = [0, 1].map(|_| Cell::new(0));
    clock.run(async {
        let waits = (0..40).map(|number| {
            let (policy, served, clock) = (&policies[number / 20], &served, &clock);
            async move {
                policy.admit(1).await.unwrap().forget();
                let mine = &served[number / 20];
                mine.set(mine.get() + 1);
                let windows = clock.elapsed().as_secs() as usize;
                assert!(mine.get() <= 5 * windows, "{} after {windows}", mine.get());
            }
        });
        futures::future::join_all(waits).await;
    });
    assert_eq!(clock.elapsed(), 4 * SECOND);
}

/// Given two queues at 5,000 a second, which are driven once a millisecond, in this order or the other, then nothing of the
/// rate is lost, and each gets half of it.
#[test]
fn queues_that_are_driven_late_take_turns_and_lose_nothing_of_the_rate() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(5_000).burst(1)).on(&clock));
    let policies = [0, 1].map(|_| Policy::builder().on(&clock).limit(Arc::clone(&bucket)).build().unwrap());
    let mut waits: Vec<_> = (0..20)
        .map(|number| (number % 2, Box::pin(policies[number % 2].admit(1))))
        .collect();
    let mut served = [0, 0];
    let mut serve = |clock: &ManualClock| {
        waits.reverse();
        for (queue, wait) in &mut waits {
            while let Poll::Ready(permit) = poll(wait.as_mut()) {
                permit.unwrap().forget();
                served[*queue] += 1;
                *wait = Box::pin(policies[*queue].admit(1));
            }
        }
        assert!(clock.elapsed() <= 2 * SECOND);
        served
    };
    serve(&clock);
    for _ in 0..1_000 {
        clock.advance(MS);
        serve(&clock);
    }
    let [one, other] = serve(&clock);
    let sum: i64 = one + other;
    assert!((sum - 5_000).abs() <= 10, "{sum}");
    assert!((one - other).abs() <= 10, "{one} and {other}");
}

/// Runs the tasks of each of `tenants`, through a policy for each, for `rounds` milliseconds of work of one millisecond.
/// Returns how many each was admitted, and the longest wait of each in milliseconds.
fn tenants(shared: &Partitions, tenants: [usize; 3], rounds: u64) -> ([u64; 3], [u64; 3]) {
    let clock = ManualClock::new();
    let policy = |class: usize| {
        let class = Arc::clone(shared.class(class));
        Policy::builder().on(&clock).limit(class).build().unwrap()
    };
    let policies = [0, 1, 2].map(policy);
    let admitted = [0, 1, 2].map(|_| Cell::new(0));
    let longest = [0, 1, 2].map(|_| Cell::new(0));
    clock.run(async {
        let tasks = (0..3).flat_map(|tenant| (0..tenants[tenant]).map(move |_| tenant));
        let tasks = tasks.map(|tenant| {
            let (policy, clock) = (&policies[tenant], &clock);
            let (admitted, longest) = (&admitted[tenant], &longest[tenant]);
            async move {
                while clock.elapsed() < rounds as u32 * MS {
                    let since = clock.elapsed();
                    let permit = policy.admit(1).await.unwrap();
                    admitted.set(admitted.get() + 1);
                    let waited = (clock.elapsed() - since).as_millis() as u64;
                    longest.set(longest.get().max(waited));
                    clock.sleep(MS).await;
                    drop(permit);
                }
            }
        });
        futures::future::join_all(tasks).await;
    });
    (admitted.map(Cell::into_inner), longest.map(Cell::into_inner))
}

/// Given two slots and tenants with very different numbers of tasks, each behind a policy of its own, then those that have
/// a task waiting at all times get the same, and one with a single task waits for one of each other at most.
#[test]
fn tenants_of_partitions_take_turns_whatever_their_numbers_of_tasks() {
    let kinds: [fn() -> Partitions; 3] = [
        || Partitions::levels(2, &[1.0; 3]).unwrap(),
        || Partitions::guaranteed(2, &[0.3; 3]).unwrap(),
        || Partitions::lent(2, 3).unwrap(),
    ];
    for make in kinds {
        let (admitted, _) = tenants(&make(), [50, 5, 3], 5_000);
        let sum: u64 = admitted.iter().sum();
        assert!(sum >= 10_000, "{sum}");
        for own in admitted {
            assert!((own as f64 / sum as f64 - 1.0 / 3.0).abs() < 0.033, "{admitted:?}");
        }
        let (admitted, longest) = tenants(&make(), [50, 5, 1], 5_000);
        assert!(longest[2] <= 2 && admitted[2] >= 5_000 / 3, "{admitted:?}, {longest:?}");
        assert!(admitted[0].abs_diff(admitted[1]) < 500, "{admitted:?}");
    }
}

/// The same on two threads, by the real clock, with work that gives the processor up. Those that have a task waiting at all times
/// get their shares within a tenth; one with a single task waits for two of each other at most, on average; no wait times out.
#[test]
#[ignore = "five seconds for each kind"]
fn tenants_of_partitions_get_their_shares_for_five_seconds_on_two_threads() {
    let kinds = [
        ("levels", Partitions::levels(2, &[1.0; 3]).unwrap()),
        ("guaranteed", Partitions::guaranteed(2, &[0.3; 3]).unwrap()),
    ];
    for (kind, shared) in kinds {
        let until = Instant::now() + Duration::from_secs(5);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build();
        let admitted = Arc::new([0, 1, 2].map(|_| AtomicUsize::new(0)));
        let by_others = Arc::new([0, 1, 2].map(|_| AtomicUsize::new(0)));
        runtime.unwrap().block_on(async {
            let tasks = [50, 5, 1].into_iter().enumerate().flat_map(|(tenant, tasks)| {
                let class = Arc::clone(shared.class(tenant));
                let policy = Policy::builder().max_wait(SECOND).limit(class).build().unwrap();
                (0..tasks).map(move |_| (tenant, policy.clone()))
            });
            let tasks = tasks.map(|(tenant, policy)| {
                let (admitted, by_others) = (Arc::clone(&admitted), Arc::clone(&by_others));
                let others = move |admitted: &[AtomicUsize; 3]| -> usize {
                    let others = (0..3).filter(|other| *other != tenant);
                    others.map(|other| admitted[other].load(Ordering::SeqCst)).sum()
                };
                tokio::spawn(async move {
                    while Instant::now() < until {
                        let before = others(&admitted);
                        let permit = policy.admit(1).await.expect("no wait times out");
                        by_others[tenant].fetch_add(others(&admitted) - before, Ordering::SeqCst);
                        admitted[tenant].fetch_add(1, Ordering::SeqCst);
                        tokio::task::yield_now().await;
                        drop(permit);
                    }
                })
            });
            futures::future::try_join_all(tasks.collect::<Vec<_>>()).await.unwrap();
        });
        let counts = |of: &[AtomicUsize; 3]| [0, 1, 2].map(|tenant| of[tenant].load(Ordering::SeqCst) as f64);
        let (admitted, by_others) = (counts(&admitted), counts(&by_others));
        assert!((admitted[0] / admitted[1] - 1.0).abs() < 0.1, "{kind}: {admitted:?}");
        assert!(by_others[2] <= 4.0 * admitted[2], "{kind}: {admitted:?}, {by_others:?}");
    }
}

/// A class that is within its guaranteed part is not held up by another that waits for what is left over, and takes nothing
/// from it; beyond its part it is.
#[test]
fn a_class_of_partitions_passes_others_within_its_own_part_alone() {
    let shared = Partitions::guaranteed(4, &[0.25, 0.25]).unwrap();
    let policy = Policy::new(Arc::clone(shared.class(0)));
    let held = shared.class(0).try_admit(2).unwrap();
    // One is the other's, one is left over.
    let mut two = pin!(policy.admit(2));
    assert!(poll(two.as_mut()).is_pending());
    let own = shared.class(1).try_admit(1).unwrap();
    assert_eq!(shared.class(1).try_admit(1).unwrap_err().reason(), Reason::Saturated);
    assert!(shared.class(0).try_admit(1).is_err());
    drop(own);
    assert!(poll(two.as_mut()).is_pending());
    drop(held);
    assert!(poll(two.as_mut()).is_ready());
}

/// A request that no change but a higher limit admits is refused at once, and holds up none that fit.
#[test]
fn a_demand_that_no_partition_can_hold_blocks_no_waiter() {
    let shared = Partitions::lent(3, 2).unwrap();
    shared.set_limit(2);
    let policies = [0, 1].map(|class| Policy::new(Arc::clone(shared.class(class))));
    let large = poll(pin!(policies[0].admit(3))).map(|admitted| admitted.unwrap_err().reason());
    assert_eq!(large, Poll::Ready(Reason::Oversized));
    assert!(matches!(poll(pin!(policies[1].admit(2))), Poll::Ready(Ok(_))));
    shared.set_limit(3);
    assert!(matches!(poll(pin!(policies[0].admit(3))), Poll::Ready(Ok(_))));
}

/// A queue that is not alone sets its timers for its turns: none of its waiters is woken more than twice.
#[test]
fn waiters_of_two_queues_are_woken_no_more_than_those_of_one() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1_000).burst(1)).on(&clock));
    let policies = [0, 1].map(|_| Policy::builder().on(&clock).limit(Arc::clone(&bucket)).build().unwrap());
    bucket.try_acquire(1).unwrap();
    let counts: Vec<_> = (0..400).map(|_| Arc::<Count>::default()).collect();
    let mut waits: Vec<_> = (0..400)
        .map(|number| Some(Box::pin(policies[number % 2].admit(1))))
        .collect();
    let mut seen = vec![usize::MAX; 400];
    while waits.iter().any(Option::is_some) {
        let mut polled = false;
        for (number, wait) in waits.iter_mut().enumerate() {
            let woken = counts[number].0.load(Ordering::SeqCst);
            let Some(future) = wait.as_mut().filter(|_| woken != seen[number]) else {
                continue;
            };
            (polled, seen[number]) = (true, woken);
            let waker = Waker::from(Arc::clone(&counts[number]));
            if let Poll::Ready(permit) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                permit.unwrap().forget();
                assert_eq!(clock.elapsed(), MS * (number as u32 + 1), "each at its own instant");
                *wait = None;
            }
        }
        assert!(polled || clock.advance_to_next_timer(), "all sleep");
    }
    let most = counts.iter().map(|count| count.0.load(Ordering::SeqCst)).max();
    assert!(most <= Some(2), "{most:?}");
}

/// Given heads that are due and whose futures are kept without being polled, then they are admitted all the same, each at its
/// instant, and hold up no other.
#[test]
fn a_head_that_is_not_polled_holds_up_no_other() {
    let clock = ManualClock::new();
    let bucket = Arc::new(TokenBucket::new(Quota::per_second(1)).on(&clock));
    let policies = [0, 1].map(|_| Policy::new(Arc::clone(&bucket)));
    bucket.try_acquire(1).unwrap();
    let (mut one, mut other) = (pin!(policies[0].admit(1)), pin!(policies[1].admit(1)));
    assert!(poll(one.as_mut()).is_pending() && poll(other.as_mut()).is_pending());
    clock.advance(3 * SECOND);
    assert!(bucket.try_acquire(1).is_ok());
    assert!(bucket.try_acquire(1).is_err());
    assert!(poll(other).is_ready() && poll(one).is_ready());
}

/// Two policies share a rate of ten a second and a semaphore of one permit. Whichever binds, and whichever is asked first, a
/// queue with two clients is served as often as one with six.
#[test]
fn queues_share_a_rate_and_a_semaphore_that_both_bind() {
    fn served(gate: impl Limiter + 'static, clock: &ManualClock, hold: Duration) -> [u64; 2] {
        let gate = Arc::new(gate);
        let policies = [(); 2].map(|()| Policy::builder().on(clock).limit(Arc::clone(&gate)).build().unwrap());
        let served = [Cell::new(0_u64), Cell::new(0)];
        clock.run(async {
            let client = async |client: usize| {
                let queue = usize::from(client > 5);
                while clock.elapsed() < Duration::from_secs(100) {
                    let permit = policies[queue].admit(1).await.unwrap();
                    served[queue].set(served[queue].get() + 1);
                    clock.sleep(hold).await;
                    drop(permit);
                }
            };
            futures::future::join_all((0..8).map(client)).await;
        });
        served.map(|served| served.get())
    }
    for hold in [90, 100, 110].map(Duration::from_millis) {
        let clock = ManualClock::new();
        let rate = |clock: &ManualClock| TokenBucket::new(Quota::per_second(10).burst(1)).on(clock);
        let rate_first = served(rate(&clock).and(Semaphore::new(1)), &clock, hold);
        let clock = ManualClock::new();
        let permit_first = served(Semaphore::new(1).and(rate(&clock)), &clock, hold);
        for [six, two] in [rate_first, permit_first] {
            assert!(
                5 * six.min(two) >= 2 * (six + two),
                "held for {hold:?}: {six} and {two}"
            );
        }
    }
}
