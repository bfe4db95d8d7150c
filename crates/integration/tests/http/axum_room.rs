//! A client receives its place through all layers, and no client gets that of another.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::{Request, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Keyed, LimiterExt, ManualClock, Policy, Quota, Semaphore, TokenBucket};
use tollgate_http::axum::{ClientIp, HttpRefusals};
use tollgate_http::{LimitLayer, WaitingRoom};
use tower::ServiceExt;

const SECOND: Duration = Duration::from_secs(1);

/// One permit, for which only clients with a place wait; a place each two seconds.
struct Rig {
    clock: ManualClock,
    core: Policy<Semaphore>,
    room: Arc<WaitingRoom>,
    app: Router,
}

fn rig() -> Rig {
    let clock = ManualClock::new();
    let core = Policy::builder()
        .on(&clock)
        .max_queue(0)
        .limit(Semaphore::new(1))
        .build()
        .unwrap();
    let rate = Quota::new(1, 2 * SECOND).unwrap();
    let room = Arc::new(WaitingRoom::new(100, rate).unwrap().on(&clock));
    let address = ClientIp::behind(1).trusting("127.0.0.0".parse().unwrap(), 8);
    let layer = LimitLayer::waiting(core.clone()).waiting_room(Arc::clone(&room), address);
    let app = Router::new().route("/", get(async || "hello"));
    let app = app.layer(layer.respond(HttpRefusals::new().retry_unknown(60 * SECOND)));
    Rig { clock, core, room, app }
}

async fn ask(app: &Router, peer: &str, forwarded: &str) -> Response<Body> {
    let peer: IpAddr = peer.parse().unwrap();
    let request = Request::builder()
        .header("x-forwarded-for", forwarded)
        .extension(ConnectInfo(SocketAddr::new(peer, 4711)))
        .body(Body::empty());
    app.clone().oneshot(request.unwrap()).await.unwrap()
}

/// The status, and what `Retry-After` says.
fn told(response: &Response<Body>) -> (u16, Option<u64>) {
    let seconds = response.headers().get("retry-after");
    let seconds = seconds.map(|value| value.to_str().unwrap().parse().unwrap());
    (response.status().as_u16(), seconds)
}

/// Given three who are refused, each is told its own instant, in whole seconds; and an outer rate that has nothing left until
/// later makes it later, within the grace: the place is there then, although no other client finds one.
#[test]
fn each_client_gets_its_instant_and_an_outer_rate_may_delay_it() {
    let Rig { clock, core, room, app } = rig();
    let for_all = clock.clone();
    let clients = Keyed::new(100, move |_: &IpAddr| {
        TokenBucket::new(Quota::new(1, 3 * SECOND).unwrap().burst(1)).on(&for_all)
    });
    let address = ClientIp::behind(1).trusting("127.0.0.0".parse().unwrap(), 8);
    let limited = app
        .clone()
        .layer(LimitLayer::keyed(Arc::new(clients), address).respond(HttpRefusals::new()));
    clock.run(async {
        let busy = core.try_admit(1).unwrap();
        let plain = [
            ask(&app, "127.0.0.1", "10.0.0.1").await,
            ask(&app, "127.0.0.1", "10.0.0.2").await,
        ];
        assert_eq!(
            plain.each_ref().map(told),
            [(503, Some(1)), (503, Some(2))],
            "a place is no guess"
        );
        assert_eq!(
            told(&ask(&limited, "127.0.0.1", "10.0.0.2").await),
            (503, Some(3)),
            "no token for 3 s"
        );

        clock.sleep(3 * SECOND).await;
        let mut back = Box::pin(ask(&limited, "127.0.0.1", "10.0.0.2"));
        assert!(futures::poll!(&mut back).is_pending(), "in the lane");
        assert_eq!(told(&ask(&limited, "127.0.0.1", "10.0.0.3").await), (503, Some(3)));
        drop(busy);
        assert_eq!(told(&back.await), (200, None));
        assert_eq!((room.stats().redeemed, room.stats().broken), (1, 0));
    });
}

/// Whatever a client writes in front of what its proxy appends, it has one place; and a client that comes past the proxy has none
/// but its own, under whatever name.
#[test]
fn a_forged_address_has_no_place_and_takes_none() {
    let Rig { clock, core, room, app } = rig();
    clock.run(async {
        let busy = core.try_admit(1).unwrap();
        assert_eq!(told(&ask(&app, "127.0.0.1", "10.0.0.1").await), (503, Some(1)));
        for forged in 0..20 {
            let forwarded = format!("192.0.2.{forged}, 10.0.0.2");
            assert_eq!(told(&ask(&app, "127.0.0.1", &forwarded).await), (503, Some(2)));
        }
        assert_eq!((room.len(), room.stats().booked), (2, 2));

        clock.sleep(2 * SECOND).await;
        let thief = ask(&app, "198.51.100.9", "10.0.0.2").await;
        assert_eq!(told(&thief), (503, Some(2)), "a newcomer, who gets a place of its own");
        assert_eq!((room.len(), room.stats().redeemed), (3, 0));
        drop(busy);
        assert_eq!(told(&ask(&app, "127.0.0.1", "192.0.2.99, 10.0.0.2").await), (200, None));
        assert_eq!(room.stats().redeemed, 1);
    });
}
