//! The waiting room of a layer, in virtual time: a client that comes back at its instant is admitted, whatever others press.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http::{Request, Response};
use http_body_util::Empty;
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tollgate::time::Sleep;
use tollgate::{BoxLimiter, LimiterExt, ManualClock, Policy, Quota, Reason, Refusal, Semaphore, TokenBucket};
use tollgate_http::{LimitError, LimitLayer, RequestParts, WaitingRoom};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
/// How long the service takes.
const WORK: Duration = Duration::from_millis(25);

type Answer = Response<Empty<&'static [u8]>>;
type Core = Policy<BoxLimiter>;

/// A core of `permits` permits behind a queue, a waiting room, and how many are inside.
struct Rig {
    clock: ManualClock,
    core: Core,
    slots: Arc<Semaphore>,
    room: Arc<WaitingRoom>,
    service: BoxCloneSyncService<Request<()>, Answer, LimitError<Infallible>>,
    inside: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    /// How often a key was read.
    looks: Arc<AtomicUsize>,
}

fn rig(limit: u64, room: WaitingRoom) -> Rig {
    rig_of(limit, None, room)
}

/// With a rate before the core, if there is one.
fn rig_of(limit: u64, rate: Option<Quota>, room: WaitingRoom) -> Rig {
    let clock = ManualClock::new();
    let slots = Arc::new(Semaphore::new(limit as usize));
    let (builder, named) = (Policy::builder(), Arc::clone(&slots).named("core"));
    let legs = match rate {
        None => builder.limit(named).boxed(),
        Some(rate) => builder
            .limit(TokenBucket::new(rate).on(&clock).named("rate"))
            .limit(named)
            .boxed(),
    };
    let core = legs.on(&clock).max_wait(100 * MS).max_queue(16).build().unwrap();
    let room = Arc::new(room.on(&clock));
    let [inside, most] = [0, 0].map(|count| Arc::new(AtomicU64::new(count)));
    let looks = Arc::new(AtomicUsize::new(0));
    let (counted, entered, peak, time) = (
        Arc::clone(&looks),
        Arc::clone(&inside),
        Arc::clone(&most),
        clock.clone(),
    );
    let client = move |head: &RequestParts<'_>| {
        counted.fetch_add(1, Ordering::Relaxed);
        head.headers().get("client").cloned()
    };
    let work = service_fn(move |_: Request<()>| {
        let (inside, most, clock) = (Arc::clone(&entered), Arc::clone(&peak), time.clone());
        async move {
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            clock.sleep(WORK).await;
            inside.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, Infallible>(Answer::default())
        }
    });
    let layer = LimitLayer::waiting(core.clone()).waiting_room(Arc::clone(&room), client);
    // The permit is held by the body: here it goes with the answer.
    let service = layer.layer(work).map_response(|_| Answer::default());
    Rig {
        service: BoxCloneSyncService::new(service),
        clock,
        core,
        slots,
        room,
        inside,
        most,
        looks,
    }
}

impl Rig {
    fn ask(&self, client: Option<u64>) -> impl Future<Output = Result<(), Refusal>> + use<> {
        let mut request = Request::new(());
        request
            .headers_mut()
            .extend(client.map(|key| (http::HeaderName::from_static("client"), key.into())));
        let answer = self.service.clone().oneshot(request);
        async move {
            match answer.await {
                Ok(_) => Ok(()),
                Err(LimitError::Refused(refusal)) => Err(refusal),
                Err(LimitError::Inner(never)) => match never {},
            }
        }
    }

    fn sleep(&self, time: Duration) -> Sleep {
        self.clock.sleep(time)
    }

    /// Asks, and comes back once when it was told, in whole seconds as `Retry-After` has it. None when it was admitted at
    /// first.
    async fn obey(&self, client: u64, late: Duration) -> Option<Result<(), Refusal>> {
        let refused = self.ask(Some(client)).await.err()?;
        self.sleep(told(&refused) + late).await;
        Some(self.ask(Some(client)).await)
    }

    /// Asks as `clients` clients in turn, at `rate` a second, whatever comes back, until `over`.
    async fn press(&self, clients: u64, rate: u64, over: &Cell<bool>) -> (u64, u64) {
        let (mut under_way, mut ends, mut sent) = (FuturesUnordered::new(), (0, 0), 0);
        while !over.get() {
            under_way.push(self.ask(Some(1_000_000 + sent % clients)));
            sent += 1;
            let mut tick = pin!(self.sleep(SECOND / rate as u32));
            loop {
                tokio::select! {
                    biased;
                    Some(end) = under_way.next(), if !under_way.is_empty() => count(&mut ends, end),
                    () = &mut tick => break,
                }
            }
        }
        while let Some(end) = under_way.next().await {
            count(&mut ends, end);
        }
        ends
    }
}

fn count(ends: &mut (u64, u64), end: Result<(), Refusal>) {
    *if end.is_ok() { &mut ends.0 } else { &mut ends.1 } += 1;
}

fn told(refusal: &Refusal) -> Duration {
    let exact = refusal.retry_after().expect("an appointment");
    Duration::from_secs(exact.as_nanos().div_ceil(SECOND.as_nanos()) as u64).max(SECOND)
}

fn of_rate(places: usize, per_second: u64) -> WaitingRoom {
    WaitingRoom::new(places, Quota::per_second(per_second)).unwrap()
}

/// Given a core that serves 160 a second, and 50 clients who ask for three times as much without heed: when a thousand come at
/// once and keep to what they are told, all of them are served, and never more than the limit at a time.
fn a_thousand_obey(room: WaitingRoom, late: Duration) -> Rig {
    let rig = rig(4, room);
    let (over, missed) = (Cell::new(false), RefCell::new(Vec::new()));
    let (pressed, obeyed) = rig.clock.run(async {
        let obedient = async {
            rig.sleep(3 * SECOND).await;
            let all = futures::future::join_all((0..1_000).map(|client| rig.obey(client, late))).await;
            over.set(true);
            let came_back: Vec<_> = all.into_iter().flatten().collect();
            missed.borrow_mut().extend(came_back.iter().filter_map(|end| end.err()));
            came_back.len()
        };
        futures::join!(rig.press(50, 480, &over), obedient)
    });
    let (admitted, refused) = pressed;
    assert!(obeyed > 950, "{obeyed} were refused at first");
    assert_eq!(*missed.borrow(), [], "each of {obeyed} was promised");
    assert!(
        refused > admitted,
        "the others are still too many: {admitted}, {refused}"
    );
    assert_eq!((rig.room.stats().broken, rig.inside.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(rig.most.load(Ordering::SeqCst), 4);
    rig
}

#[test]
fn clients_that_honour_retry_after_are_admitted_under_three_fold_overload() {
    let rig = a_thousand_obey(of_rate(10_000, 64), Duration::ZERO);
    assert!(rig.room.stats().redeemed >= 950);
}

#[test]
fn late_clients_are_admitted_as_well() {
    a_thousand_obey(of_rate(10_000, 40), 4 * SECOND - MS);
}

/// The quota is one a second, and the rest is measured: all have come in a twentieth of the time that this would take.
#[test]
fn a_measured_rate_keeps_its_promises() {
    let rig = a_thousand_obey(of_rate(10_000, 1).share(0.4).unwrap(), Duration::ZERO);
    let took = rig.clock.elapsed();
    assert!(took < 40 * SECOND, "{took:?}");
}

/// Given promises for ten seconds at 32 a second, and a limit that is lowered to a quarter: half of what is left serves as
/// many, so that they hold; and newcomers are served besides.
#[test]
fn a_lower_limit_breaks_no_promise() {
    let rig = rig(8, of_rate(10_000, 32));
    let over = Cell::new(false);
    let ((admitted, _), came_back) = rig.clock.run(async {
        let obedient = async {
            rig.sleep(SECOND).await;
            let all = futures::future::join_all((0..340).map(|client| rig.obey(client, Duration::ZERO)));
            let lowering = async {
                rig.sleep(2 * SECOND).await;
                rig.slots.set_limit(2);
                rig.sleep(WORK).await;
                rig.most.store(0, Ordering::SeqCst);
            };
            let (all, ()) = futures::join!(all, lowering);
            over.set(true);
            all.into_iter().flatten().collect::<Vec<_>>()
        };
        futures::join!(rig.press(20, 960, &over), obedient)
    });
    assert!(
        came_back.len() > 300 && admitted > 100,
        "{}, {admitted}",
        came_back.len()
    );
    assert_eq!(came_back.iter().find(|end| end.is_err()), None);
    assert_eq!(rig.most.load(Ordering::SeqCst), 2, "the new limit");
}

/// A client that asks a hundred times has one place; one that comes early is a newcomer and keeps it; and two requests that
/// come for one place are one that it is for, and a newcomer.
#[test]
fn no_client_collects_places() {
    let rig = rig(1, of_rate(10_000, 1));
    rig.clock.run(async {
        let busy = rig.core.try_admit(1).unwrap();
        assert_eq!(rig.ask(Some(1)).await.unwrap_err().retry_after(), Some(Duration::ZERO));
        let all = futures::future::join_all((0..100).map(|_| rig.ask(Some(7)))).await;
        for end in all {
            let wait = end.unwrap_err().retry_after().unwrap();
            assert!(
                [SECOND, 900 * MS].contains(&wait),
                "{wait:?}, at once or after the line: one instant"
            );
        }
        assert_eq!((rig.room.len(), rig.room.stats().booked), (2, 2));

        drop(busy);
        assert_eq!(rig.ask(Some(7)).await, Ok(()), "early, and there is room");
        assert_eq!((rig.room.len(), rig.room.stats().redeemed), (2, 0));

        let _busy = rig.core.try_admit(1).unwrap();
        rig.sleep(2 * SECOND).await;
        let mut mine = pin!(rig.ask(Some(7)));
        assert!(futures::poll!(&mut mine).is_pending());
        assert_eq!(rig.ask(Some(7)).await.unwrap_err().reason(), Reason::TimedOut);
        assert!(
            futures::poll!(&mut mine).is_pending(),
            "in the lane for longer than others wait"
        );
        assert_eq!(rig.room.stats().redeemed, 1);
    });
}

/// A client that has come back and leaves again has lost its place, and no other client anything.
#[test]
fn a_client_that_leaves_loses_only_its_own_place() {
    let rig = rig(1, of_rate(10_000, 1));
    rig.clock.run(async {
        let busy = rig.core.try_admit(1).unwrap();
        for client in 0..3 {
            let refused = rig.ask(Some(client)).await.unwrap_err();
            assert!(refused.retry_after().unwrap() <= client as u32 * SECOND);
        }
        rig.sleep(2 * SECOND).await;
        let mut gone = Box::pin(rig.ask(Some(0)));
        assert!(futures::poll!(&mut gone).is_pending());
        let mut next = Box::pin(rig.ask(Some(1)));
        assert!(futures::poll!(&mut next).is_pending());
        drop(gone);
        drop(busy);
        assert_eq!(next.await, Ok(()));
        assert_eq!(rig.ask(Some(2)).await, Ok(()));
        assert_eq!(
            (rig.room.stats().redeemed, rig.room.stats().broken, rig.room.len()),
            (3, 0, 0)
        );
    });
}

/// A promise that cannot be kept, since the core is stuck for longer than any client waits, is counted, and there is another.
#[test]
fn a_broken_promise_is_counted_and_made_anew() {
    let rig = rig(1, of_rate(10_000, 1).grace(2 * SECOND).unwrap());
    rig.clock.run(async {
        let busy = rig.core.try_admit(1).unwrap();
        let first = rig.ask(Some(7)).await.unwrap_err();
        rig.sleep(told(&first)).await;
        let before = rig.clock.elapsed();
        let second = rig.ask(Some(7)).await.unwrap_err();
        assert_eq!((second.reason(), second.leg()), (Reason::TimedOut, "core"));
        assert_eq!(rig.clock.elapsed() - before, 2 * SECOND, "the grace, and no longer");
        assert_eq!((rig.room.stats().broken, rig.room.len()), (1, 1));
        drop(busy);
        rig.sleep(told(&second)).await;
        assert_eq!(rig.ask(Some(7)).await, Ok(()));
        assert_eq!(rig.room.stats().redeemed, 2);
    });
}

/// While no request is refused, no key is asked for, and without a key there is no place.
#[test]
fn a_service_that_is_never_full_looks_at_nothing() {
    let rig = rig(4, of_rate(10, 1));
    rig.clock.run(async {
        for client in 0..100 {
            assert_eq!(rig.ask(Some(client)).await, Ok(()));
        }
        assert_eq!(rig.looks.load(Ordering::Relaxed), 0);
        let _busy = rig.core.try_admit(4).unwrap();
        let refused = rig.ask(None).await.unwrap_err();
        assert_eq!((refused.reason(), refused.retry_after()), (Reason::TimedOut, None));
        assert!(rig.room.is_empty());
    });
}

/// Where there are no places, the refusal says when the clients with one have come.
#[test]
fn a_full_room_says_when_those_before_have_come() {
    let rig = rig(1, of_rate(2, 1));
    rig.clock.run(async {
        let _busy = rig.core.try_admit(1).unwrap();
        let all = futures::future::join_all((0..4).map(|client| rig.ask(Some(client)))).await;
        let waits = all.into_iter().map(|end| end.unwrap_err().retry_after().unwrap());
        assert_eq!(waits.collect::<Vec<_>>(), [0, 1, 1, 1].map(|seconds| seconds * SECOND));
        assert_eq!((rig.room.len(), rig.room.stats().full), (2, 2));
    });
}

/// Given a client that comes a little too early and waits across its instant in vain: it has its place still, and is
/// let in by it.
#[test]
fn a_request_that_waits_across_its_instant_keeps_its_place() {
    let rig = rig(1, of_rate(10, 1));
    rig.clock.run(async {
        let busy = rig.core.try_admit(1).unwrap();
        assert_eq!(rig.ask(Some(1)).await.unwrap_err().retry_after(), Some(Duration::ZERO));
        assert_eq!(rig.ask(Some(7)).await.unwrap_err().retry_after(), Some(900 * MS));
        rig.sleep(850 * MS).await;
        let again = rig.ask(Some(7)).await.unwrap_err();
        assert_eq!(
            (again.retry_after(), rig.room.stats().booked),
            (Some(Duration::ZERO), 2)
        );
        drop(busy);
        rig.sleep(told(&again)).await;
        assert_eq!(rig.ask(Some(7)).await, Ok(()));
        assert_eq!((rig.room.stats().redeemed, rig.room.len()), (1, 1));
    });
}

/// Given a rate beside the core that has its next token in a minute: the place is for then, so that it is there when the client
/// is, which was told so.
#[test]
fn a_place_is_not_over_before_a_rate_lets_in() {
    let rig = rig_of(4, Some(Quota::per_minute(1)), of_rate(100, 1));
    rig.clock.run(async {
        assert_eq!(rig.ask(Some(1)).await, Ok(()));
        let refused = rig.ask(Some(2)).await.unwrap_err();
        assert_eq!((refused.reason(), refused.leg()), (Reason::TimedOut, "rate"));
        let wait = refused.retry_after().unwrap();
        assert!(wait > 59 * SECOND, "{wait:?}");
        rig.sleep(wait).await;
        assert_eq!(rig.ask(Some(2)).await, Ok(()));
        let stats = rig.room.stats();
        assert_eq!((stats.booked, stats.redeemed, stats.missed), (1, 1, 0));
    });
}

/// Given a room of two places at a rate that is no bound at all: when both who had them stand in the lane, the next two are
/// refused there, and not let wait without end.
#[test]
fn no_more_stand_in_the_lane_than_there_are_places() {
    let rig = rig(1, WaitingRoom::new(2, Quota::unlimited()).unwrap());
    rig.clock.run(async {
        let busy = rig.core.try_admit(1).unwrap();
        let wave = async |clients: [u64; 2], start: Duration| {
            rig.sleep(start).await;
            let [one, other] = clients.map(|client| rig.obey(client, Duration::ZERO));
            let (one, other) = futures::join!(one, other);
            [one, other].map(|end| end.expect("refused at first").map_err(|refused| refused.reason()))
        };
        let (first, second, ()) = futures::join!(wave([0, 1], Duration::ZERO), wave([2, 3], 1_500 * MS), async {
            rig.sleep(3 * SECOND).await;
            drop(busy);
        });
        assert_eq!(first, [Ok(()); 2]);
        assert_eq!(second, [Err(Reason::QueueFull); 2]);
        assert_eq!(rig.room.stats().broken, 2);
    });
}

/// Without a single place a refusal says no more than it did without a room.
#[test]
fn no_places_are_no_promises() {
    let rig = rig(1, of_rate(0, 1));
    rig.clock.run(async {
        let _busy = rig.core.try_admit(1).unwrap();
        let refused = rig.ask(Some(1)).await.unwrap_err();
        assert_eq!((refused.reason(), refused.retry_after()), (Reason::TimedOut, None));
    });
}
