//! Policies pushed from a key of Consul's, while the store comes and goes.

use crate::consul::ask;
use crate::consul_store::{Kind, server};
use crate::rig::proxy::{Mode, Proxy};
use crate::store::key;
use std::time::Duration;
use tokio::sync::mpsc;
use tollgate::Clock;
use tollgate_config::{ConfigError, PolicySpec, Reload};
use tollgate_stores::Consul;

fn text(limit: &str) -> String {
    format!("[[leg]]\nname = \"in flight\"\nkind = \"semaphore\"\nlimit = {limit}\n")
}

fn put(key: &str, text: &str) {
    assert_eq!(ask(server(), "PUT", &format!("/v1/kv/{key}"), text).unwrap(), "true");
}

type Event = Result<u64, ConfigError>;

/// A bound for failures only.
async fn next(events: &mut mpsc::UnboundedReceiver<Event>) -> Event {
    let event = tokio::time::timeout(Duration::from_secs(60), events.recv()).await;
    event.expect("something happens").expect("it is followed")
}

#[tokio::test]
async fn versions_are_put_in_force_and_the_last_good_one_stays() {
    let proxy = Proxy::before(server()).await.unwrap();
    let consul = Consul::at(proxy.address());
    let key = format!("policies/{}.toml", key());
    let missing = consul.policy::<PolicySpec>(&key).await.map(drop).unwrap_err();
    assert_eq!(missing.file(), key, "there is none yet: {missing}");
    put(&key, &text("2"));
    let (spec, source) = consul.policy::<PolicySpec>(&key).await.unwrap();
    assert_eq!(source.key(), key);
    let policy = spec.build(&Clock::real()).unwrap();
    let (sender, mut events) = mpsc::unbounded_channel();
    let followed = policy.clone();
    let following = tokio::spawn(async move { followed.follow(source, |event| drop(sender.send(event))).await });
    let limit = || policy.limiter().leg("in flight").unwrap().capacity();
    assert_eq!(limit(), Some(2));

    put(&key, &text("3"));
    assert!(next(&mut events).await.is_ok());
    assert_eq!(limit(), Some(3));

    put(&key, &text("\"three\""));
    let Err(error) = next(&mut events).await else {
        panic!("it is wrong")
    };
    assert_eq!((error.file(), error.line(), error.column()), (&*key, Some(4), Some(9)));
    assert_eq!(limit(), Some(3));

    proxy.set(Mode::Cut);
    let Err(error) = next(&mut events).await else {
        panic!("the store is away")
    };
    assert_eq!(error.file(), "", "{error}");
    put(&key, &text("5"));
    assert_eq!(limit(), Some(3));
    proxy.set(Mode::Pass);
    // Further attempts are not reported.
    assert!(next(&mut events).await.is_ok());
    assert_eq!(limit(), Some(5));

    ask(server(), "DELETE", &format!("/v1/kv/{key}"), "").unwrap();
    let Err(error) = next(&mut events).await else {
        panic!("it is gone")
    };
    assert_eq!(error.file(), key, "{error}");
    assert_eq!(limit(), Some(5));
    put(&key, &text("6"));
    assert!(next(&mut events).await.is_ok());
    assert_eq!(limit(), Some(6));
    following.abort();
}
