//! The waiting room by itself: places, their instants, and their bound.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tollgate::{ManualClock, Policy, Quota, TokenBucket};
use tollgate_http::{RoomFull, WaitingRoom, WaitingRoomError};

const SECOND: Duration = Duration::from_secs(1);

fn room(places: usize, per_second: u64) -> (ManualClock, WaitingRoom) {
    let clock = ManualClock::new();
    let room = WaitingRoom::new(places, Quota::per_second(per_second)).unwrap();
    let room = room.on(&clock);
    (clock, room)
}

#[test]
fn errors_name_the_allowed_range() {
    let room = || WaitingRoom::new(1, Quota::per_second(1)).unwrap();
    let none = WaitingRoom::new(1, Quota::zero()).unwrap_err();
    assert_eq!(none, WaitingRoomError::NoRate);
    assert_eq!(
        none.to_string(),
        "a rate of zero was given, and a waiting room needs one above"
    );
    assert_eq!(room().set_quota(Quota::zero()), Err(WaitingRoomError::NoRate));
    for (given, is_allowed) in [
        (Duration::ZERO, false),
        (2 * SECOND - Duration::from_nanos(1), false),
        (2 * SECOND, true),
        (86_400 * SECOND, true),
        (86_400 * SECOND + Duration::from_nanos(1), false),
        (Duration::MAX, false),
    ] {
        assert_eq!(room().grace(given).is_ok(), is_allowed, "{given:?}");
    }
    let short = room().grace(SECOND).unwrap_err();
    assert_eq!(
        short.to_string(),
        "a grace of 1s was given, and 2s to 86400s is allowed"
    );
    for (given, is_allowed) in [
        (0.0, true),
        (0.5, true),
        (1.0, true),
        (1.01, false),
        (-0.1, false),
        (f64::NAN, false),
    ] {
        assert_eq!(room().share(given).is_ok(), is_allowed, "{given}");
    }
}

/// Settings come in any order, and none undoes another.
#[test]
fn settings_stay() {
    let clock = ManualClock::new();
    let room = WaitingRoom::new(7, Quota::per_second(3))
        .unwrap()
        .grace(9 * SECOND)
        .unwrap();
    let room = room.on(&clock).share(0.3).unwrap();
    assert_eq!((room.max_places(), room.kept_for()), (7, 9 * SECOND));
    assert_eq!(room.quota(), Quota::per_second(3));
    assert!(format!("{room:?}").contains("max_places: 7"), "{room:?}");
}

/// A key that asks again and again gets one place, whatever it does, and it is there once.
#[test]
fn a_key_has_one_place() {
    let (clock, room) = room(100, 10);
    assert_eq!(room.book("first"), Ok(Duration::ZERO));
    for waited in 0..10 {
        let left = Duration::from_millis(100 - waited * 10);
        assert_eq!(room.book("ada"), Ok(left), "the same instant");
        assert!(!room.redeem("ada"), "early");
        clock.advance(Duration::from_millis(10));
    }
    assert_eq!((room.len(), room.stats().booked), (2, 2));
    assert!(room.redeem("ada"));
    assert!(!room.redeem("ada"), "once");
    assert!(room.cancel("first"));
    assert!(room.is_empty() && !room.cancel("first"));
}

#[test]
fn a_place_is_kept_for_the_grace_and_no_longer() {
    let (clock, room) = room(100, 1);
    for key in 0..3 {
        assert_eq!(room.book(&key), Ok(key * SECOND));
    }
    // The last of these comes as late as it may, the others do not come.
    clock.advance(2 * SECOND + WaitingRoom::GRACE);
    assert!(room.redeem(&2));
    assert!(!room.redeem(&0) && !room.redeem(&1));
    let stats = room.stats();
    assert_eq!((stats.booked, stats.redeemed, stats.missed, room.len()), (3, 1, 2, 0));

    assert_eq!(room.book(&0), Ok(Duration::ZERO), "what has passed is not made up for");
    clock.advance(WaitingRoom::GRACE + Duration::from_nanos(1));
    assert!(!room.redeem(&0), "a nanosecond late");
}

/// However many keys come, places stay within their bound, and a key without one gets the instant at which all have come.
#[test]
fn memory_is_bounded_and_a_full_room_says_so() {
    let (clock, room) = room(1_000, 100);
    for key in 0..100_000_u32 {
        match room.book(&key) {
            Ok(wait) => assert_eq!(wait, Duration::from_millis(u64::from(key) * 10)),
            Err(full) => {
                assert!(key >= 1_000);
                assert_eq!(full.retry_after(), Duration::from_millis(9_990));
            }
        }
    }
    assert_eq!((room.len(), room.stats().full), (1_000, 99_000));
    let full: RoomFull = room.book(&5_000).unwrap_err();
    assert_eq!(full.to_string(), "all 1000 places of the waiting room are taken");
    assert!(room.redeem(&0), "what was told holds");
    assert_eq!(room.book(&5_000), Ok(10 * SECOND), "behind all others");
    clock.advance(20 * SECOND);
    assert_eq!(room.book(&6_000), Ok(Duration::ZERO));
    assert_eq!(room.len(), 1_001 - 64, "what is over goes bit by bit");
    for _ in 0..1_000 / 64 {
        assert!(!room.redeem(&6_001));
    }
    assert_eq!(room.len(), 1);

    let none = WaitingRoom::new(0, Quota::per_second(1)).unwrap();
    assert_eq!(none.book("ada").unwrap_err().retry_after(), Duration::ZERO);
}

/// Given a full room whose places have all come due and that were not claimed: the next key gets the instant at which the first of
/// them expires, and finds that place then.
#[test]
fn a_full_room_of_due_places_names_the_end_of_one() {
    let (clock, room) = room(2, 1_000);
    for key in 0..2 {
        assert!(room.book(&key).is_ok());
    }
    clock.advance(Duration::from_millis(10));
    let wait = room.book(&2).unwrap_err().retry_after();
    assert!(wait > WaitingRoom::GRACE - Duration::from_millis(10), "{wait:?}");
    assert!(wait <= WaitingRoom::GRACE, "{wait:?}");
    clock.advance(wait);
    assert_eq!(room.book(&2), Ok(Duration::ZERO));
    assert_eq!(room.stats().missed, 1);
}

/// Another rate leaves promised instants as they are; later clients stand behind all outstanding places.
#[test]
fn another_rate_applies_to_later_clients() {
    let (clock, room) = room(100, 10);
    let wait = |key: u64| room.book(&key).unwrap().as_millis();
    assert_eq!([wait(0), wait(1), wait(2)], [0, 100, 200]);
    room.set_quota(Quota::per_second(2)).unwrap();
    assert_eq!([wait(1), wait(2), wait(3)], [100, 200, 1_000], "two are still to come");
    room.set_quota(Quota::unlimited()).unwrap();
    assert_eq!([wait(4), wait(5)], [0, 0]);
    clock.advance(Duration::from_millis(200));
    assert_eq!([1, 2, 3_u64].map(|key| room.redeem(&key)), [true, true, false]);
    room.set_quota(Quota::new(1, 365 * 86_400 * SECOND).unwrap()).unwrap();
    assert_eq!(
        [wait(6), wait(3)],
        [365 * 86_400_000 + 800, 800],
        "a year behind the last"
    );
}

/// Given a hundred seconds of promises and then a rate twice as fast: no second has more of them than this rate.
#[test]
fn a_faster_rate_gives_out_no_more_than_itself() {
    let (_clock, room) = room(10_000, 10);
    let mut waits: Vec<_> = (0..1_000).map(|key| room.book(&key).unwrap()).collect();
    room.set_quota(Quota::per_second(20)).unwrap();
    waits.extend((1_000..2_000).map(|key| room.book(&key).unwrap()));
    let mut seconds = [0; 125];
    for wait in waits {
        seconds[wait.as_secs() as usize] += 1;
    }
    assert_eq!(seconds.iter().max(), Some(&20), "{seconds:?}");
}

/// While clients are refused all the time, the service rate is measured, and the share of it is given out: at once less, later
/// more. After a second without a refusal, nothing is known any more.
#[test]
fn a_share_of_the_service_rate_is_given_out() {
    let clock = ManualClock::new();
    let room = WaitingRoom::new(usize::MAX, Quota::per_second(1)).unwrap();
    let room = room.on(&clock).share(0.25).unwrap();
    let mut keys = 0_u64;
    // How many are served and refused, and how many milliseconds apart; then how far two newcomers are apart.
    let mut apart = |served: u64, ms: u64| {
        for _ in 0..served {
            clock.advance(Duration::from_millis(ms));
            room.note_served();
            let _ = room.book("all of them");
        }
        keys += 2;
        let [one, two] = [keys, keys + 1].map(|key| room.book(&key).unwrap());
        (two - one).as_millis()
    };
    assert_eq!(
        apart(65, 10),
        1_000,
        "the quota: the first stretch begins with the first refused caller"
    );
    assert_eq!(apart(64, 10), 40, "a quarter of 100 a second");
    assert_eq!(apart(64, 20), 80, "slower at once");
    assert_eq!(apart(64, 10), 80, "faster after two stretches");
    assert_eq!(apart(64, 10), 40);
    assert_eq!(apart(128, 900), 1_000, "never less than the quota");
    assert_eq!(apart(128, 10), 40);
    clock.advance(SECOND + Duration::from_nanos(1));
    assert_eq!(apart(0, 0), 1_000);
}

/// Given a measured rate and many clients with later instants: they keep them, so none is refused for a while. A client refused
/// then is behind them at that rate, and not at the quota.
#[test]
fn a_measured_rate_is_known_while_places_are_outstanding() {
    let clock = ManualClock::new();
    let room = WaitingRoom::new(usize::MAX, Quota::per_second(1)).unwrap();
    let room = room.on(&clock).share(0.25).unwrap();
    for _ in 0..129 {
        clock.advance(Duration::from_millis(10));
        room.note_served();
        let _ = room.book("all of them");
    }
    let waits = (0..1_000).map(|key| room.book(&key).unwrap()).max().unwrap();
    clock.advance(Duration::from_secs(2));
    assert_eq!(
        room.book("late"),
        Ok(waits - Duration::from_secs(2) + Duration::from_millis(40))
    );
    clock.advance(waits);
    assert_eq!(room.book("first"), Ok(Duration::ZERO));
    assert_eq!(room.book("second"), Ok(SECOND), "all have come, and it is over");
}

/// Given a rate of ten a second with a queue that is never empty, and clients that a waiting room calls back, at four
/// a second, then each is admitted when its instant has come, within two tokens.
#[test]
fn a_waiting_room_keeps_its_promises_where_a_rate_binds() {
    let clock = ManualClock::new();
    let core = Policy::new(TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock));
    let bypass = core.bypass_queue(SECOND);
    let room = WaitingRoom::new(1_000, Quota::per_second(4)).unwrap().on(&clock);
    clock.run(async {
        let line = (0..40).map(|_| async {
            while clock.elapsed() < 60 * SECOND {
                core.admit(1).await.unwrap().forget();
            }
        });
        let clients = (0..200u32).map(|client| {
            let (room, bypass, clock) = (&room, &bypass, &clock);
            async move {
                let told = room.book(&client).unwrap();
                clock.sleep(told).await;
                assert!(room.redeem(&client));
                let since = clock.elapsed();
                bypass.admit(1).await.unwrap().forget();
                assert!(clock.elapsed() - since <= Duration::from_millis(200), "{client}");
            }
        });
        futures::join!(futures::future::join_all(line), futures::future::join_all(clients));
    });
}

/// A key whose hash panics at the `k`-th call.
struct Panics<'a>(u32, &'a Cell<u32>);

impl Hash for Panics<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let left = self.1.get();
        self.1.set(left.saturating_sub(1));
        assert_ne!(left, 1, "on purpose");
        self.0.hash(state);
    }
}

/// Given keys whose hash panics once, at any call, then the room holds no place that cannot be given up, and gives out all of them again.
#[test]
fn a_room_survives_keys_that_panic() {
    for k in 1..10 {
        let clock = ManualClock::new();
        let room = WaitingRoom::new(2, Quota::per_second(1)).unwrap().on(&clock);
        let left = Cell::new(k);
        let keys = [0, 1, 2].map(|key| Panics(key, &left));
        let step = |act: &dyn Fn() -> bool| drop(catch_unwind(AssertUnwindSafe(act)));
        for key in &keys {
            step(&|| room.book(key).is_ok());
        }
        step(&|| room.cancel(&keys[0]));
        clock.advance(5 * SECOND);
        step(&|| room.redeem(&keys[1]));
        left.set(0);
        for key in &keys {
            room.cancel(key);
        }
        assert!(room.is_empty());
        assert!(keys[..2].iter().all(|key| room.book(key).is_ok()));
    }
}
