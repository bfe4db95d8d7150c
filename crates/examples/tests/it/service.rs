//! The judge of the example `service`: each of its bars can be missed.

#[allow(unreachable_pub, dead_code)]
#[path = "../../examples/service/judge.rs"]
mod judge;

use judge::{End, Promises, Tally, missed};
use std::time::Duration;

fn admitted() -> End {
    End::of(200, None, false, Duration::from_millis(3))
}

/// A thousand answers, of which one in ten is a refusal, and a client that kept to it.
fn good() -> (Tally, Promises) {
    let (mut tally, mut promises) = (Tally::default(), Promises::default());
    for at in 0..1_000 {
        tally.add(match at % 10 {
            0 => End::of(if at % 20 == 0 { 429 } else { 503 }, Some("2"), false, Duration::ZERO),
            _ => admitted(),
        });
    }
    promises.add(true, &admitted());
    (tally, promises)
}

#[test]
fn a_good_run_misses_nothing() {
    let (mut tally, promises) = good();
    assert_eq!(missed(&tally, &promises, 16, 16), [""; 0]);
    assert_eq!(
        (tally.all(), tally.admitted(), tally.by_rate, tally.by_capacity),
        (1_000, 900, 50, 50)
    );
    assert_eq!(tally.quantile(0.99), Duration::from_millis(3));
}

#[test]
fn each_bar_can_be_missed() {
    let of = |spoil: &dyn Fn(&mut Tally, &mut Promises)| {
        let (mut tally, mut promises) = good();
        spoil(&mut tally, &mut promises);
        missed(&tally, &promises, 16, 16)
    };
    let refusal = |retry| End::of(503, retry, false, Duration::ZERO);
    assert_eq!(
        of(&|tally, _| (0..3).for_each(|_| tally.add(End::Failed("no answer".into())))),
        ["0.299 % have failed"]
    );
    assert_eq!(
        of(&|tally, _| tally.add(End::of(500, None, false, Duration::ZERO))),
        [""; 0],
        "a tenth of a percent"
    );
    for untold in [None, Some("0"), Some("soon"), Some("-1")] {
        assert_eq!(
            of(&|tally, _| tally.add(refusal(untold))),
            ["1 refusals without Retry-After"],
            "{untold:?}"
        );
    }
    let limited = End::of(429, Some("1"), false, Duration::ZERO);
    assert_eq!(of(&|_, promises| promises.add(true, &limited)), ["1 promises broken"]);
    let failed = End::Failed("no answer".into());
    assert_eq!(
        of(&|_, promises| promises.add(true, &failed)),
        ["1 that honoured Retry-After had no answer"]
    );
    assert_eq!(
        of(&|_, promises| *promises = Promises::default()),
        ["no promise was kept"]
    );
    // The core knows of no promise that a rate has made.
    assert_eq!(of(&|_, promises| promises.add(true, &refusal(Some("1")))), [""; 0]);
    for again in [&refusal(Some("1")), &limited] {
        assert_eq!(
            of(&|_, promises| promises.add(false, again)),
            ["1 that honoured the Retry-After of a 503 were refused again"]
        );
    }
    let none = |promises: &mut Promises| {
        *promises = Promises::default();
        promises.add(true, &refusal(Some("1")));
        promises.add(false, &admitted());
    };
    assert_eq!(of(&|_, promises| none(promises)), ["no promise was kept"]);

    let (tally, promises) = good();
    assert_eq!(missed(&tally, &promises, 17, 16), ["17 in flight, of 16"]);
    assert_eq!(missed(&tally, &promises, 0, 16), ["0 in flight, of 16"]);
    let idle = missed(&Tally::default(), &promises, 1, 16);
    assert_eq!(idle, ["no request was admitted"]);
}
