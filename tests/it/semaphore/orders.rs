//! Semaphores in other orders than first come first served, with bounded queues, and open to be overtaken.

use proptest::prelude::*;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tollgate::{
    AcquireError, Eviction, Order, OrderError, Policy, Semaphore, SemaphoreError, SemaphorePermit, TryAcquireError,
};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Acquired<'a> = Result<SemaphorePermit<'a>, AcquireError>;

/// A waiter, with a mark to identify it.
struct Waiter<'a> {
    mark: usize,
    future: Pin<Box<dyn Future<Output = Acquired<'a>> + 'a>>,
    count: Arc<Count>,
}

impl<'a> Waiter<'a> {
    fn new(semaphore: &'a Semaphore, n: u32, class: u8, mark: usize) -> Self {
        Self {
            mark,
            future: Box::pin(semaphore.request(n).class(class).acquire()),
            count: Arc::default(),
        }
    }

    fn poll(&mut self) -> Poll<Acquired<'a>> {
        let waker = Waker::from(Arc::clone(&self.count));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn queued(semaphore: &'a Semaphore, n: u32, class: u8, mark: usize) -> Self {
        let mut waiter = Self::new(semaphore, n, class, mark);
        assert!(waiter.poll().is_pending());
        waiter
    }

    fn woken(&self) -> bool {
        self.count.0.load(Ordering::SeqCst) > 0
    }
}

/// Lets one permit go round among `waiters` until all have had it, and returns their marks in order.
fn served(held: SemaphorePermit<'_>, mut waiters: Vec<Waiter<'_>>) -> Vec<usize> {
    let mut order = Vec::new();
    let mut held = Some(held);
    while !waiters.is_empty() {
        drop(held.take());
        let next = waiters
            .iter()
            .position(Waiter::woken)
            .expect("a waiter has been granted");
        let mut waiter = waiters.remove(next);
        order.push(waiter.mark);
        match waiter.poll() {
            Poll::Ready(permit) => held = Some(permit.unwrap()),
            Poll::Pending => panic!("woken for nothing"),
        }
    }
    order
}

fn with_order(order: Order) -> Semaphore {
    Semaphore::builder(1).order(order).build().unwrap()
}

#[test]
fn the_last_to_come_is_the_first_to_go() {
    let semaphore = with_order(Order::Lifo);
    let held = semaphore.try_acquire().unwrap();
    let waiters = (0..4).map(|mark| Waiter::queued(&semaphore, 1, 0, mark)).collect();
    assert_eq!(served(held, waiters), [3, 2, 1, 0]);
    assert_eq!(semaphore.available_permits(), 1);
}

#[test]
fn classes_take_turns() {
    let semaphore = with_order(Order::RoundRobin { classes: 3 });
    let held = semaphore.try_acquire().unwrap();
    let waiters = [0, 0, 0, 1, 1, 2].map(|class| Waiter::queued(&semaphore, 1, class, class.into()));
    assert_eq!(served(held, waiters.into()), [0, 1, 2, 0, 1, 0]);
}

#[test]
fn shares_follow_weights_by_permits() {
    let semaphore = with_order(Order::Shares(vec![3, 1]));
    let held = semaphore.try_acquire().unwrap();
    let mut waiters = Vec::new();
    for mark in [0, 1] {
        waiters.extend((0..40).map(|_| Waiter::queued(&semaphore, 1, mark, mark.into())));
    }
    let first = &served(held, waiters)[..40];
    assert_eq!(first.iter().filter(|&&mark| mark == 0).count(), 30);
}

/// Of forty permits each of two classes gets twenty, also where one class asks for two at a time.
#[test]
fn shares_are_counted_in_permits() {
    let order = Order::Shares(vec![1, 1]);
    let semaphore = Semaphore::builder(0).order(order).build().unwrap();
    let queued = |n, class| -> Vec<_> { (0..30).map(|mark| Waiter::queued(&semaphore, n, class, mark)).collect() };
    let (pairs, singles) = (queued(2, 0), queued(1, 1));
    semaphore.set_limit(40);
    let woken = |waiters: &[Waiter<'_>]| waiters.iter().filter(|waiter| waiter.woken()).count();
    assert_eq!((woken(&pairs), woken(&singles)), (10, 20));
}

/// The bound that `Order::Priority` states, with urgent ones always waiting.
#[test]
fn the_lowest_class_is_granted_within_the_stated_bound() {
    let (classes, patience) = (4, 5);
    let semaphore = with_order(Order::Priority { classes, patience });
    let held = semaphore.try_acquire().unwrap();
    let mut waiters = Vec::new();
    for class in 0..classes {
        waiters.extend((0..50).map(|_| Waiter::queued(&semaphore, 1, class, class.into())));
    }
    let order = served(held, waiters);
    let bound = patience as usize + usize::from(classes) - 1;
    for class in 0..usize::from(classes) {
        let turns: Vec<_> = (0..order.len()).filter(|&turn| order[turn] == class).collect();
        assert!(
            turns[0] < bound && turns.windows(2).all(|pair| pair[1] - pair[0] <= bound),
            "{class}: {turns:?}"
        );
    }
    // Three of every eight, after the first five: the rest is for the most urgent.
    assert_eq!(order[..16].iter().filter(|&&class| class == 0).count(), 10);
}

#[test]
fn an_urgent_newcomer_passes_the_waiters() {
    let semaphore = with_order(Order::Priority {
        classes: 2,
        patience: 100,
    });
    let held = semaphore.try_acquire().unwrap();
    let waiters = [1, 1, 0].map(|class| Waiter::queued(&semaphore, 1, class, class.into()));
    assert_eq!(served(held, waiters.into()), [0, 1, 1]);
}

/// A class that would overtake and fits is served on arrival, although a larger request of a lower class waits.
#[test]
fn a_class_that_fits_is_not_held_up_by_a_lower_one_that_does_not() {
    let semaphore = Semaphore::builder(2)
        .order(Order::Priority {
            classes: 2,
            patience: 9,
        })
        .build()
        .unwrap();
    let _held = semaphore.try_acquire().unwrap();
    let _large = Waiter::queued(&semaphore, 2, 1, 0);
    let mut urgent = Waiter::new(&semaphore, 1, 0, 1);
    let polled = urgent.poll();
    assert!(polled.is_ready() || urgent.woken() && urgent.poll().is_ready());
}

/// An urgent one that need not wait is a grant that passes others over: one of those may be next by that, and fit.
#[test]
fn the_head_after_a_granted_newcomer_goes_on() {
    let order = Order::Priority {
        classes: 3,
        patience: 1,
    };
    let semaphore = Semaphore::builder(2).order(order).build().unwrap();
    let _large = Waiter::queued(&semaphore, 3, 1, 0);
    let mut last = Waiter::queued(&semaphore, 1, 2, 1);
    let urgent = semaphore.request(1).class(0).blocking_acquire().unwrap();
    assert!(last.woken());
    assert!(last.poll().is_ready());
    drop(urgent);
}

#[test]
fn a_full_queue_refuses_the_newest() {
    let semaphore = Semaphore::builder(1).max_queue(1).build().unwrap();
    let held = semaphore.try_acquire().unwrap();
    let mut first = Waiter::queued(&semaphore, 1, 0, 0);
    let Poll::Ready(Err(full)) = Waiter::new(&semaphore, 1, 0, 1).poll() else {
        panic!("one may wait")
    };
    assert!(full.is_queue_full() && !full.is_closed());
    assert_eq!(full.to_string(), "the semaphore's queue is full");
    drop(held);
    assert!(matches!(first.poll(), Poll::Ready(Ok(_))));
    assert!(semaphore.try_acquire().is_ok());
}

#[test]
fn a_queue_is_bounded_by_units_too() {
    let semaphore = Semaphore::builder(4).max_queue_permits(5).build().unwrap();
    let held = semaphore.try_acquire_many(4).unwrap();
    let _three = Waiter::queued(&semaphore, 3, 0, 0);
    assert!(Waiter::new(&semaphore, 3, 0, 1).poll().is_ready());
    let _two = Waiter::queued(&semaphore, 2, 0, 2);
    drop(held);
    // A queue of zero refuses, and leaves the semaphore as it was.
    let none = Semaphore::builder(1).max_queue(0).build().unwrap();
    let held = none.try_acquire().unwrap();
    assert!(Waiter::new(&none, 1, 0, 0).poll().is_ready());
    drop(held);
    assert_eq!(none.available_permits(), 1);
}

#[test]
fn the_oldest_waiter_is_evicted_if_configured() {
    let semaphore = Semaphore::builder(1)
        .max_queue(2)
        .eviction(Eviction::Oldest)
        .build()
        .unwrap();
    let held = semaphore.try_acquire().unwrap();
    let mut waiters: Vec<_> = (0..3).map(|mark| Waiter::queued(&semaphore, 1, 0, mark)).collect();
    let mut oldest = waiters.remove(0);
    assert!(oldest.woken());
    let Poll::Ready(Err(evicted)) = oldest.poll() else {
        panic!("it has been sent away")
    };
    assert!(evicted.is_evicted());
    assert_eq!(served(held, waiters), [1, 2]);
    assert_eq!((semaphore.available_permits(), semaphore.waiting()), (1, 0));
}

/// The running holder takes the permit again in front of the woken waiter, up to the bound and not once more.
/// Keeps out tokio#6450, heph#238, async-lock#23.
#[test]
fn the_head_is_overtaken_up_to_the_bound() {
    let semaphore = Semaphore::builder(1).overtakes(3).build().unwrap();
    let held = semaphore.try_acquire().unwrap();
    let mut first = Waiter::queued(&semaphore, 1, 0, 0);
    let mut second = Waiter::queued(&semaphore, 1, 0, 1);
    drop(held);
    assert!(first.woken() && !second.woken());
    for _ in 0..3 {
        let overtaker = semaphore.try_acquire().unwrap();
        assert!(first.poll().is_pending(), "nothing is left for it");
        drop(overtaker);
    }
    assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
    let Poll::Ready(Ok(permit)) = first.poll() else {
        panic!("its turn has come")
    };
    assert!(second.poll().is_pending());
    drop(permit);
    assert!(second.woken() && second.poll().is_ready());
    assert_eq!(semaphore.in_use(), 0);
}

/// No waiter is evicted for a newcomer that could not wait even alone.
#[test]
fn a_demand_above_the_unit_bound_evicts_no_waiter() {
    let semaphore = Semaphore::builder(1)
        .max_queue_permits(3)
        .eviction(Eviction::Oldest)
        .build()
        .unwrap();
    let _held = semaphore.try_acquire().unwrap();
    let mut first = Waiter::queued(&semaphore, 1, 0, 0);
    let mut second = Waiter::queued(&semaphore, 2, 0, 1);
    let refused = Waiter::new(&semaphore, 4, 0, 2).poll();
    assert!(matches!(refused, Poll::Ready(Err(error)) if error.is_queue_full()));
    assert!(first.poll().is_pending() && second.poll().is_pending());
    assert_eq!(semaphore.waiting(), 2);
}

/// Whatever the order, waiters are refused because it was closed, and not for another reason.
#[test]
fn waiters_are_notified_of_the_close() {
    let orders = [
        Order::Fifo,
        Order::Lifo,
        Order::RoundRobin { classes: 2 },
        Order::Shares(vec![1, 2]),
        Order::Priority {
            classes: 2,
            patience: 1,
        },
    ];
    for order in orders {
        let semaphore = Semaphore::builder(0).order(order).max_queue(9).build().unwrap();
        let mut waiters = [0, 1].map(|class| Waiter::queued(&semaphore, 1, class, 0));
        semaphore.close();
        for waiter in &mut waiters {
            assert!(waiter.woken());
            assert!(matches!(waiter.poll(), Poll::Ready(Err(error)) if error.is_closed()));
        }
        assert_eq!(semaphore.waiting(), 0);
    }
}

/// The same with a queue that has bounds; and the next head can be overtaken as often.
#[test]
fn the_head_of_a_bounded_queue_is_overtaken_up_to_the_bound() {
    let semaphore = Semaphore::builder(1).overtakes(3).max_queue(1).build().unwrap();
    for mark in 0..2 {
        let held = semaphore.try_acquire().unwrap();
        let mut waiter = Waiter::queued(&semaphore, 1, 0, mark);
        drop(held);
        for _ in 0..3 {
            drop(semaphore.try_acquire().unwrap());
        }
        assert_eq!(semaphore.try_acquire().unwrap_err(), TryAcquireError::NoPermits);
        assert!(waiter.poll().is_ready());
    }
    let held = semaphore.try_acquire().unwrap();
    let mut waiter = Waiter::queued(&semaphore, 1, 0, 2);
    drop(held);
    assert!(waiter.poll().is_ready(), "it takes its own turn");
    assert_eq!((semaphore.in_use(), semaphore.waiting()), (0, 0));
}

/// The woken waiter leaves: the next is woken for the free permits.
/// Keeps out asyncio#270.
#[test]
fn a_cancelled_head_passes_the_wake_up_on() {
    let semaphore = Semaphore::builder(1).overtakes(1_000).build().unwrap();
    let held = semaphore.try_acquire().unwrap();
    let first = Waiter::queued(&semaphore, 1, 0, 0);
    let mut second = Waiter::queued(&semaphore, 1, 0, 1);
    drop(held);
    drop(first);
    assert!(second.woken() && second.poll().is_ready());
    assert_eq!((semaphore.available_permits(), semaphore.waiting()), (1, 0));
}

#[test]
fn an_invalid_configuration_is_an_error() {
    let builder = |order| Semaphore::builder(1).order(order);
    let refused = [
        (
            Semaphore::builder(Semaphore::MAX_PERMITS + 1),
            SemaphoreError::Permits {
                given: Semaphore::MAX_PERMITS + 1,
            },
        ),
        (
            builder(Order::RoundRobin { classes: 0 }),
            SemaphoreError::Order(OrderError::Classes { given: 0 }),
        ),
        (
            builder(Order::RoundRobin { classes: 33 }),
            SemaphoreError::Order(OrderError::Classes { given: 33 }),
        ),
        (
            builder(Order::Shares(vec![])),
            SemaphoreError::Order(OrderError::Classes { given: 0 }),
        ),
        (
            builder(Order::Shares(vec![1, 0])),
            SemaphoreError::Order(OrderError::Weight),
        ),
        (
            builder(Order::Priority {
                classes: 2,
                patience: 0,
            }),
            SemaphoreError::Order(OrderError::Patience),
        ),
        (builder(Order::Lifo).overtakes(1), SemaphoreError::Overtaking),
    ];
    for (builder, error) in refused {
        assert_eq!(builder.build().unwrap_err(), error);
        assert!(error.to_string().contains("given") || error == SemaphoreError::Overtaking);
    }
    assert!(builder(Order::RoundRobin { classes: 32 }).build().is_ok());
}

/// Keeps out parking_lot#29.
#[test]
fn threads_and_classes_wait_in_one_queue() {
    let semaphore = Arc::new(with_order(Order::Shares(vec![2, 1])));
    let most = AtomicUsize::new(0);
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (semaphore, most, inside) = (&semaphore, &most, &inside);
            scope.spawn(move || {
                for _ in 0..500 {
                    let _permit = semaphore.request(1).class(thread % 2).blocking_acquire().unwrap();
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!((most.into_inner(), semaphore.available_permits()), (1, 1));
}

#[derive(Clone, Debug)]
enum Op {
    Join { n: u32, class: u8 },
    Leave(usize),
    Release(usize),
    Limit(usize),
    Poll(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u32..4, 0u8..4).prop_map(|(n, class)| Op::Join { n, class }),
        2 => any::<usize>().prop_map(Op::Leave),
        4 => any::<usize>().prop_map(Op::Release),
        1 => (0usize..6).prop_map(Op::Limit),
        3 => any::<usize>().prop_map(Op::Poll),
    ]
}

fn kinds() -> impl Strategy<Value = Semaphore> {
    prop_oneof![
        Just((Order::Fifo, 0)),
        Just((Order::Fifo, 2)),
        Just((Order::Lifo, 0)),
        Just((
            Order::Priority {
                classes: 3,
                patience: 2
            },
            0
        )),
        Just((Order::RoundRobin { classes: 4 }, 0)),
        Just((Order::Shares(vec![5, 1]), 0)),
    ]
    .prop_flat_map(|kind| (Just(kind), 1usize..7, any::<bool>(), 1usize..5))
    .prop_map(|((order, overtakes), max_queue, evict, permits)| {
        let eviction = if evict { Eviction::Oldest } else { Eviction::Never };
        let builder = Semaphore::builder(permits)
            .order(order)
            .overtakes(overtakes)
            .max_queue(max_queue)
            .max_queue_permits(9)
            .eviction(eviction);
        #[cfg(feature = "stats")]
        let builder = if permits % 2 == 0 {
            builder.stats(&tollgate::Clock::real())
        } else {
            builder
        };
        builder.build().unwrap()
    })
}

proptest! {
    #![proptest_config(crate::cases(3_000))]

    /// Given any order, bounds and program, then no caller is admitted above the limit, the queue never exceeds its bounds,
    /// no waiter that fits is left asleep, and in the end everything is back.
    #[test]
    fn any_program_in_any_order_keeps_the_books(semaphore in kinds(), ops in prop::collection::vec(op(), 0..80)) {
        let mut waiting: VecDeque<(u32, Waiter<'_>)> = VecDeque::new();
        let mut held: Vec<(u32, SemaphorePermit<'_>)> = Vec::new();
        let mut limit = semaphore.limit();
        for (mark, op) in ops.into_iter().enumerate() {
            match op {
                Op::Join { n, class } => {
                    let mut waiter = Waiter::new(&semaphore, n, class, mark);
                    match waiter.poll() {
                        Poll::Ready(Ok(permit)) => held.push((n, permit)),
                        Poll::Ready(Err(error)) => prop_assert!(error.is_queue_full()),
                        Poll::Pending => waiting.push_back((n, waiter)),
                    }
                }
                Op::Leave(at) if !waiting.is_empty() => drop(waiting.remove(at % waiting.len())),
                Op::Release(at) if !held.is_empty() => drop(held.swap_remove(at % held.len())),
                Op::Limit(new) => {
                    semaphore.set_limit(new);
                    limit = new;
                }
                Op::Poll(at) if !waiting.is_empty() => {
                    let at = at % waiting.len();
                    match waiting[at].1.poll() {
                        Poll::Ready(Ok(permit)) => {
                            let n = waiting.remove(at).unwrap().0;
                            held.push((n, permit));
                        }
                        Poll::Ready(Err(error)) => {
                            prop_assert!(error.is_evicted());
                            drop(waiting.remove(at));
                        }
                        Poll::Pending => {}
                    }
                }
                _ => {}
            }
            let taken: usize = held.iter().map(|(n, _)| *n as usize).sum();
            prop_assert!(semaphore.in_use() >= taken);
            prop_assert_eq!(semaphore.limit(), limit);
            prop_assert!(semaphore.waiting() <= 6);
        }
        // Every waiter goes on, as long as a woken one is there.
        semaphore.set_limit(9);
        while !waiting.is_empty() {
            held.clear();
            let next = waiting.iter().position(|(_, waiter)| waiter.woken());
            prop_assert!(next.is_some(), "{} asleep, and all permits are free", waiting.len());
            let (n, mut waiter) = waiting.remove(next.unwrap()).unwrap();
            match waiter.poll() {
                Poll::Ready(Ok(permit)) => held.push((n, permit)),
                Poll::Ready(Err(error)) => prop_assert!(error.is_evicted()),
                Poll::Pending => waiting.push_back((n, waiter)),
            }
        }
        held.clear();
        prop_assert_eq!((semaphore.available_permits(), semaphore.waiting(), semaphore.in_use()), (9, 0, 0));
        #[cfg(feature = "stats")]
        if let Some(stats) = semaphore.stats() {
            prop_assert!(crate::semaphore::stats::adds_up(&stats) && stats.granted_unpolled == 0);
        }
    }
}

/// Given two of five permits free, and a waiter of class 1 that wants four, then a policy whose waiter wants one, and is
/// next by the rules, is admitted at once, and not at the next release.
#[test]
fn a_policy_that_is_next_by_class_receives_the_free_permits() {
    let orders = [
        Order::Lifo,
        Order::Priority {
            classes: 2,
            patience: 8,
        },
        Order::RoundRobin { classes: 2 },
        Order::Shares(vec![1, 1]),
    ];
    for order in orders {
        let semaphore = Arc::new(Semaphore::builder(5).order(order.clone()).build().unwrap());
        let held = semaphore.try_acquire_many(3).unwrap();
        let mut large = Waiter::queued(&semaphore, 4, 1, 0);
        let policy = Policy::new(Arc::clone(&semaphore));
        let mut small = Box::pin(policy.admit(1));
        let admitted = small.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(admitted, Poll::Ready(Ok(_))), "{order:?}");
        assert_eq!((semaphore.in_use(), semaphore.waiting()), (4, 1), "{order:?}");
        drop((admitted, held));
        assert!(large.woken() && large.poll().is_ready(), "{order:?}");
    }
}
