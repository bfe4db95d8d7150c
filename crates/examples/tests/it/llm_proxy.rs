//! The example `llm_proxy` on the manual clock, beside the same limits by hand: each of the things that those cannot do.

#[path = "../../examples/llm_proxy/app.rs"]
mod app;
#[path = "../../examples/llm_proxy/by_hand.rs"]
mod by_hand;
#[path = "../../examples/llm_proxy/limits.rs"]
mod limits;
#[path = "../../examples/llm_proxy/upstream.rs"]
mod upstream;

use app::App;
use axum::Router;
use axum::body::{Body, to_bytes};
use by_hand::{ByHand, Quotas, Refused};
use futures::future::{join, join_all};
use http::Request;
use limits::Limits;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};
use tollgate::ManualClock;
use tower::{ServiceExt, service_fn};
use upstream::Upstream;

const SECOND: Duration = Duration::from_secs(1);

/// The proxy by a copy of its file, in which texts are replaced, before an upstream that takes ten seconds and bills sixty tokens.
struct World {
    clock: ManualClock,
    app: App,
    router: Router,
    folder: tempfile::TempDir,
}

/// The status, the seconds of `Retry-After`, and when it came.
#[derive(Debug, PartialEq)]
struct Answer(u16, Option<u64>, Duration);

impl World {
    fn new(replaced: &[(&str, &str)]) -> Self {
        let (clock, folder) = (ManualClock::new(), tempfile::tempdir().unwrap());
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/llm_proxy/limits.toml");
        let mut text = std::fs::read_to_string(file).unwrap();
        for (from, to) in replaced {
            text = text.replace(from, to);
        }
        let file = folder.path().join("limits.toml");
        std::fs::write(&file, text).unwrap();
        let limits = Limits::open(&file, &clock).unwrap();
        let upstream = Arc::new(Upstream::new(&clock, 10 * SECOND, 60));
        let app = App::new(limits, upstream);
        let router = app.router();
        Self {
            clock,
            app,
            router,
            folder,
        }
    }

    async fn ask(&self, key: &str, model: &str, max_tokens: u64) -> Answer {
        let body = format!(r#"{{"model": "{model}", "prompt": "", "max_tokens": {max_tokens}}}"#);
        let request = Request::post("/v1/completions").header("authorization", format!("Bearer {key}"));
        let response = self
            .router
            .clone()
            .oneshot(request.body(Body::from(body)).unwrap())
            .await
            .unwrap();
        let retry = response
            .headers()
            .get("retry-after")
            .map(|value| value.to_str().unwrap().parse().unwrap());
        let status = response.status().as_u16();
        to_bytes(response.into_body(), usize::MAX).await.unwrap();
        Answer(status, retry, self.clock.elapsed())
    }

    /// The statuses of asks that come one after the other, an instant apart.
    async fn statuses(&self, asks: &[(&str, &str)]) -> Vec<u16> {
        let asks = asks.iter().map(|(key, model)| self.ask(key, model, 100));
        join_all(asks)
            .await
            .into_iter()
            .map(|Answer(status, ..)| status)
            .collect()
    }

    async fn metrics(&self) -> String {
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        String::from_utf8(to_bytes(response.into_body(), usize::MAX).await.unwrap().into()).unwrap()
    }
}

/// As the free tier of the tests: five requests, a thousand tokens a minute, one slot for each model.
fn by_hand(burst: u32) -> ByHand {
    let number = |n| NonZeroU32::new(n).unwrap();
    let quotas = Quotas {
        requests_per_minute: number(1),
        request_burst: number(burst),
        tokens_per_minute: number(1_000),
        tokens_per_day: 1_000,
    };
    ByHand::new(quotas, &[("small", 16), ("large", 1)])
}

const FIVE_REQUESTS: (&str, &str) = ("20/min burst 5", "1/h burst 5");
const TWO_LARGE: (&str, &str) = ("limit = 4", "limit = 2");

async fn slow() -> Result<u64, ()> {
    tokio::time::sleep(10 * SECOND).await;
    Ok(60)
}

/// Given a model that is busy for longer than the wait, when a key is refused for it, then the refusal has cost it none of its
/// five requests; by hand it has cost one.
#[test]
fn a_refusal_by_a_busy_model_costs_the_key_nothing() {
    let world = World::new(&[FIVE_REQUESTS, TWO_LARGE]);
    world.clock.run(async {
        let (held, refused) = join(world.ask("paid-1", "large", 100), world.ask("free-1", "large", 100)).await;
        assert_eq!(held, Answer(200, None, 10 * SECOND));
        assert_eq!((refused.0, refused.2), (503, 5 * SECOND));
        assert_eq!(
            world.statuses(&[("free-1", "small"); 6]).await,
            [200, 200, 200, 200, 200, 429]
        );
    });
}

#[tokio::test(start_paused = true)]
async fn by_hand_a_refusal_by_a_busy_model_has_been_charged() {
    let limits = by_hand(5);
    let (held, refused) = join(
        limits.call("paid-1", "large", 100, slow()),
        limits.call("free-1", "large", 100, slow()),
    )
    .await;
    assert_eq!((held, refused), (Ok(60), Err(Refused::TimedOut)));
    let asks = (0..5).map(|_| limits.call("free-1", "small", 100, slow()));
    let ends = join_all(asks).await;
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 4);
    assert!(matches!(ends[4], Err(Refused::Requests(_))));
}

/// Given an upstream that fails ten times, then the circuit is open: a request is refused at once, says when the circuit will be
/// tried, reaches no upstream, and costs nothing; by hand it has been charged, and says no time.
#[test]
fn an_open_circuit_refuses_at_once_and_costs_nothing() {
    let world = World::new(&[FIVE_REQUESTS]);
    let upstream = &world.app.upstream;
    world.clock.run(async {
        upstream.is_sick.store(true, Ordering::Relaxed);
        assert_eq!(world.statuses(&[("paid-1", "small"); 10]).await, [502; 10]);
        let opened = world.clock.elapsed();
        for _ in 0..8 {
            assert_eq!(world.ask("free-1", "small", 100).await, Answer(503, Some(10), opened));
        }
        assert_eq!(upstream.calls.load(Ordering::Relaxed), 10);
        let text = world.metrics().await;
        for line in [
            "proxy_open{leg=\"upstream\"} 1",
            "proxy_refused_total{of=\"upstream\"} 8",
            "proxy_upstream_total{of=\"failed\"} 10",
            "proxy_in_use{leg=\"small\"} 0",
            "proxy_limit{leg=\"large\"} 4",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
        upstream.is_sick.store(false, Ordering::Relaxed);
        world.clock.sleep(10 * SECOND).await;
        let probes = world.statuses(&[("free-1", "small"); 2]).await;
        assert_eq!(probes, [200, 200]);
        assert_eq!(world.statuses(&[("free-1", "small"); 4]).await, [200, 200, 200, 429]);
    });
}

#[tokio::test]
async fn by_hand_an_open_circuit_has_been_charged() {
    let limits = by_hand(5);
    // It looks at ten calls when the eleventh is made.
    for key in 0..11 {
        let failed = limits
            .call(&format!("paid-{key}"), "small", 100, async { Err(()) })
            .await;
        assert_eq!(failed, Err(Refused::Failed));
    }
    for _ in 0..5 {
        let refused = limits.call("free-1", "small", 100, async { Ok(60) }).await;
        assert_eq!(refused, Err(Refused::Open));
    }
    let refused = limits.call("free-1", "small", 100, async { Ok(60) }).await;
    assert!(matches!(refused, Err(Refused::Requests(_))), "{refused:?}");
}

/// Given a thousand tokens, asks for at most five hundred, and answers of sixty, then sixteen fit; by hand two do.
#[test]
fn tokens_that_an_answer_did_not_take_come_back() {
    let world = World::new(&[("20/min burst 5", "100/s"), ("10000/min", "1/d burst 1000")]);
    world.clock.run(async {
        for n in 0..16 {
            // The last estimates are smaller than what is left.
            let most = 500.min(1_000 - 60 * n);
            assert_eq!(world.ask("free-1", "small", most).await.0, 200, "{n}");
        }
        assert_eq!(world.ask("free-1", "small", 100).await.0, 429);
        // A failure costs nothing: the rest of forty is still there.
        world.app.upstream.is_sick.store(true, Ordering::Relaxed);
        assert_eq!(world.ask("free-1", "small", 40).await.0, 502);
        assert_eq!(world.ask("free-1", "small", 40).await.0, 502);
    });
}

#[tokio::test]
async fn by_hand_the_estimate_stays_charged() {
    let limits = by_hand(5);
    for _ in 0..2 {
        assert_eq!(limits.call("free-1", "small", 500, async { Ok(60) }).await, Ok(60));
    }
    let refused = limits.call("free-1", "small", 500, async { Ok(60) }).await;
    assert!(matches!(refused, Err(Refused::Tokens(_))), "{refused:?}");
}

/// Given a model of two slots, one of them for paid keys, and free keys that wait, when a paid key comes last, then it is served at once.
#[test]
fn a_paid_key_finds_a_slot_where_free_ones_wait() {
    let world = World::new(&[TWO_LARGE, FIVE_REQUESTS]);
    let upstream = Arc::new(Upstream::new(&world.clock, SECOND, 60));
    let app = App::new(Arc::clone(&world.app.limits), upstream);
    let world = World {
        router: app.router(),
        app,
        ..world
    };
    let served = Mutex::new(Vec::new());
    let ask = async |key| {
        assert_eq!(world.ask(key, "large", 100).await.0, 200, "{key}");
        served.lock().unwrap().push(key);
    };
    world
        .clock
        .run(join_all(["free-1", "free-2", "free-3", "paid-1"].map(&ask)));
    assert_eq!(*served.lock().unwrap(), ["free-1", "paid-1", "free-2", "free-3"]);
}

#[tokio::test(start_paused = true)]
async fn by_hand_the_first_to_come_is_the_first_served() {
    let (limits, served) = (by_hand(5), Mutex::new(Vec::new()));
    let ask = async |key| {
        let answer = async {
            tokio::time::sleep(SECOND).await;
            Ok(60)
        };
        limits.call(key, "large", 100, answer).await.unwrap();
        served.lock().unwrap().push(key);
    };
    join_all(["free-1", "free-2", "free-3", "paid-1"].map(&ask)).await;
    assert_eq!(*served.lock().unwrap(), ["free-1", "free-2", "free-3", "paid-1"]);
}

/// Given a key that has used its five requests, when the file of its tier allows ten, then its bucket stays as empty as it is; by hand a
/// new limiter lets ten more pass. A file that is wrong changes nothing, and says where.
#[test]
fn a_reload_keeps_what_was_used() {
    let world = World::new(&[FIVE_REQUESTS]);
    let file = world.folder.path().join("limits.toml");
    let change = |from: &str, to: &str| {
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(from, to)).unwrap();
        world.app.limits.reload()
    };
    world.clock.run(async {
        assert_eq!(world.statuses(&[("free-1", "small"); 5]).await, [200; 5]);
        let wrong = change("1/h burst 5", "1/h burst ten").unwrap_err();
        assert!(wrong.to_string().contains("limits.toml:20:"), "{wrong}");
        assert_eq!(world.ask("free-1", "small", 100).await.0, 429);
        change("1/h burst ten", "1/h burst 10").unwrap();
        assert_eq!(world.statuses(&[("free-1", "small"); 6]).await, [429; 6]);
        // Another tier: ten come each second, which the requests wait for.
        assert_eq!(change("paid-2 =", "free-1 =").unwrap(), Some(3));
        assert_eq!(world.statuses(&[("free-1", "small"); 16]).await, [200; 16]);
    });
    change("limit = 16", "limit = 7").unwrap();
    assert_eq!(world.app.limits.models["small"].limit(), 7);
}

#[tokio::test]
async fn by_hand_a_changed_limit_starts_full() {
    let all = async |limits: &ByHand| {
        let asks = (0..20).map(|_| limits.call("free-1", "small", 1, async { Ok(1) }));
        join_all(asks).await.into_iter().filter(Result::is_ok).count()
    };
    assert_eq!((all(&by_hand(5)).await, all(&by_hand(10)).await), (5, 10));
}

/// Given a daily budget in Berlin that is used up an hour and a half before midnight, then the refusal names midnight, and the key
/// is served again from then on; by hand that is an hour late.
#[test]
fn the_daily_budget_begins_anew_at_midnight_of_its_zone() {
    let world = World::new(&[("limit = 100000", "limit = 1000"), ("20/min burst 5", "100/s")]);
    // 2026-11-23 21:30 UTC; an answer takes ten seconds.
    world.clock.set_wall(UNIX_EPOCH + Duration::from_secs(1_795_469_400));
    world.app.upstream.bills.store(1_000, Ordering::Relaxed);
    world.clock.run(async {
        assert_eq!(world.ask("free-1", "small", 1_000).await.0, 200);
        let refused = world.ask("free-1", "small", 1).await;
        assert_eq!((refused.0, refused.1), (429, Some(90 * 60 - 10)));
        world.clock.sleep(Duration::from_secs(90 * 60 - 10)).await;
        assert_eq!(world.ask("free-1", "small", 1_000).await.0, 200);
    });
}

#[test]
fn by_hand_a_day_begins_at_midnight_utc() {
    let limits = by_hand(5);
    let at = |second| UNIX_EPOCH + Duration::from_secs(second);
    let used = limits.spend("free-1".to_owned(), 1_000, at(1_795_469_400));
    let midnight = limits.spend("free-1".to_owned(), 1_000, at(1_795_474_800));
    let later = limits.spend("free-1".to_owned(), 1_000, at(1_795_478_400));
    assert_eq!((used, midnight, later), (Ok(()), Err(Refused::Budget), Ok(())));
}

/// Given a request in flight and a drain, then a new request is refused, the first one ends, and the drain with it.
#[test]
fn a_drain_ends_what_was_admitted_and_admits_no_more() {
    let world = World::new(&[]);
    let drained = async |most| {
        world.clock.sleep(SECOND).await;
        let all = world.app.drain(&world.clock, most).await;
        (all, world.clock.elapsed())
    };
    world.clock.run(async {
        let late = async {
            world.clock.sleep(2 * SECOND).await;
            world.ask("paid-2", "small", 100).await
        };
        let held = world.ask("paid-1", "small", 100);
        let (held, (late, (all, ended))) = join(held, join(late, drained(30 * SECOND))).await;
        assert_eq!((held.0, late.0, all), (200, 503, true));
        assert!(ended < Duration::from_millis(10_050), "{ended:?}");
    });
}

/// What comes in before any limit is asked.
#[test]
fn a_request_that_names_no_key_or_model_is_refused_before_its_limits() {
    let world = World::new(&[]);
    world.clock.run(async {
        assert_eq!(world.ask("paid-1", "gigantic", 100).await.0, 404);
        assert_eq!(world.ask("paid-1", "small", 1 << 40).await.0, 400);
        let request = Request::post("/v1/completions").body(Body::empty()).unwrap();
        let response = world.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 401);
        assert!(world.metrics().await.contains("proxy_keys 0"));
    });
}

/// The guard of the whole server by tower's layers, which say no more than that it is overloaded.
#[tokio::test]
async fn by_hand_the_server_sheds_load() {
    let service = ByHand::server().service(service_fn(async |(): ()| Ok::<_, std::convert::Infallible>(())));
    assert!(service.oneshot(()).await.is_ok());
}

/// The limits fit on a page.
#[test]
fn the_limits_take_at_most_150_lines() {
    assert!(include_str!("../../examples/llm_proxy/limits.rs").lines().count() <= 150);
}
