//! The log of admissions: its records, its bound, its sample, and its text.

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;
use tollgate::{Ask, Cost, LimiterExt, ManualClock, Outcome, Policy, Quota, Semaphore, TokenBucket};
use tollgate_observe::record::AdmissionLog;

const TOKENS: Cost = Cost::new("tokens");

fn text(log: &AdmissionLog) -> Vec<String> {
    let mut text = Vec::new();
    log.write(&mut text).unwrap();
    String::from_utf8(text).unwrap().lines().map(Into::into).collect()
}

#[test]
fn a_wait_is_recorded_from_its_arrival_with_what_it_was_settled_to() {
    let clock = ManualClock::new();
    let bucket = TokenBucket::new(Quota::per_second(10).burst(10)).on(&clock);
    let log = AdmissionLog::new(10, &[TOKENS]);
    let gate = log.record(Policy::new(bucket.per(TOKENS)));
    clock.run(async {
        let first = gate.admit(Ask::one().cost(TOKENS, 10)).await.unwrap();
        let mut second = gate.admit(Ask::many(3).cost(TOKENS, 5)).await.unwrap();
        second.settle(TOKENS, 2).unwrap();
        clock.advance(Duration::from_secs(1));
        second.finish(Outcome::Failure);
        first.finish(Outcome::Success);
    });
    assert_eq!(
        text(&log),
        [
            "at,weight,calls,waited,leg,hold,failed,tokens,tokens.used",
            "0.000000000,1,3,0.500000000,,1.000000000,yes,5,2",
            "0.000000000,1,1,0.000000000,,1.500000000,no,10,10",
        ]
    );
    assert!(text(&log).is_empty(), "the names of the columns are written once");
}

#[test]
fn a_failed_write_leaves_the_names_of_the_columns_to_the_next() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = AdmissionLog::new(10, &[]);
    let gate = log.record(Semaphore::new(1)).on(&ManualClock::new());
    drop(gate.try_admit(1).unwrap());
    assert!(log.write(&mut Full).is_err());
    drop(gate.try_admit(1).unwrap());
    assert_eq!(text(&log).len(), 2);
}

#[test]
fn a_dropped_wait_is_recorded_as_cancelled_and_a_cancelled_permit_is_no_request() {
    let clock = ManualClock::new();
    let log = AdmissionLog::new(10, &[]);
    let gate = log.record(Policy::builder().limit(Semaphore::new(1)).on(&clock).build().unwrap());
    gate.try_admit(1).unwrap().cancel();
    let held = gate.try_admit(1).unwrap();
    {
        let mut waiting = pin!(gate.admit(1));
        assert!(
            waiting
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
                .is_pending()
        );
        clock.advance(Duration::from_secs(2));
    }
    assert!(gate.try_admit(1).is_err());
    held.forget();
    let lines = text(&log);
    assert_eq!(
        lines[1..],
        [
            "0.000000000,1,1,2.000000000,(cancelled),,",
            "2.000000000,1,1,0.000000000,semaphore,,",
            "0.000000000,1,1,0.000000000,,2.000000000,no",
        ]
    );
}

#[test]
fn a_full_log_forgets_the_oldest_that_has_ended_and_else_records_no_more() {
    let clock = ManualClock::new();
    let log = AdmissionLog::new(2, &[]);
    let gate = log.record(Semaphore::new(3)).on(&clock);
    gate.try_admit(1).unwrap().finish(Outcome::Success);
    gate.try_admit(2).unwrap().finish(Outcome::Success);
    gate.try_admit(3).unwrap().finish(Outcome::Success);
    assert_eq!(log.lost(), 1);
    let counts = |lines: &[String]| -> Vec<String> {
        let calls = lines.iter().map(|line| line.split(',').nth(2).unwrap().to_owned());
        calls.collect()
    };
    assert_eq!(counts(&text(&log)[1..]), ["2", "3"]);
    let held = [1, 1, 1].map(|_| gate.try_admit(1).unwrap());
    assert_eq!(log.lost(), 2, "two are under way, and the third is not recorded");
    drop(held);
    assert_eq!(text(&log).len(), 2);
    gate.try_admit(3).unwrap().finish(Outcome::Overload);
    assert_eq!(text(&log), ["0.000000000,1,3,0.000000000,,0.000000000,yes"]);
}

#[test]
fn one_in_ten_requests_stands_for_ten() {
    let log = AdmissionLog::new(100, &[]).one_in(10);
    let gate = log.record(Semaphore::new(1)).on(&ManualClock::new());
    for _ in 0..95 {
        drop(gate.try_admit(1).unwrap());
    }
    let lines = text(&log);
    assert_eq!(lines.len(), 1 + 10);
    assert!(lines[1..].iter().all(|line| line.split(',').nth(1) == Some("10")));
    let none = AdmissionLog::new(0, &[]);
    drop(none.record(Semaphore::new(1)).try_admit(1).unwrap());
    assert_eq!((text(&none).len(), none.lost()), (1, 1));
}

#[test]
fn names_with_commas_and_quotes_are_quoted() {
    let log = AdmissionLog::new(9, &[Cost::new("a,b")]);
    let gate = log
        .record(Semaphore::new(0).named("a \"great\" leg"))
        .on(&ManualClock::new());
    assert!(gate.try_admit(1).is_err());
    assert_eq!(
        text(&log),
        [
            "at,weight,calls,waited,leg,hold,failed,\"a,b\",\"a,b.used\"",
            "0.000000000,1,1,0.000000000,\"a \"\"great\"\" leg\",,,0,",
        ]
    );
}
