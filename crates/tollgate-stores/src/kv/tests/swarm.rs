//! Processes that sync once or twice and die, at a store that keeps a clock.

use super::*;

/// One in a second, each with a ledger of its own, which goes with it.
async fn swarm(store: &Fake, seconds: u64, closes: bool) -> u64 {
    let mut given = 0;
    for client in 0..seconds {
        let mut one = Client::new(&Ledger::new(store.clone()), client);
        given += one.take(10).await.unwrap();
        given += one.take(5).await.unwrap();
        if closes {
            one.end().await;
        }
        sleep(Duration::from_secs(1)).await;
    }
    given
}

fn takers(store: &Fake) -> usize {
    let (_, value) = store.0.values.lock()[&key().of_kind(Rule::RATE)].clone();
    let document: serde_json::Value = serde_json::from_slice(&value).unwrap();
    document["takers"].as_object().unwrap().len()
}

/// Ten come in a second; a clock of whole seconds reports up to two of them late.
#[tokio::test(start_paused = true)]
async fn a_new_process_uses_the_clock_of_the_store() {
    for closes in [false, true] {
        let store = Fake::default();
        *store.0.clock.lock() = Some(Instant::now());
        let given = swarm(&store, 60, closes).await;
        assert!((200..=610).contains(&given), "{given}, {closes}");
        assert!(closes || (1..=14).contains(&takers(&store)));
    }
}

/// Without a clock of the store no process learns of the refill while unobserved.
#[tokio::test(start_paused = true)]
async fn without_a_store_clock_nothing_refills_while_unobserved() {
    let store = Fake::default();
    assert_eq!(swarm(&store, 60, false).await, 10);
    assert_eq!(takers(&store), 60);
}

/// Once when a process comes, now and then where it reads anyway, and when it goes.
#[tokio::test(start_paused = true)]
async fn the_clock_is_asked_for_now_and_then() {
    let store = Fake::default();
    *store.0.clock.lock() = Some(Instant::now());
    let (ours, theirs) = (Ledger::new(store.clone()), Ledger::new(store.clone()));
    let (mut one, mut other) = (Client::new(&ours, 1), Client::new(&theirs, 2));
    let asked = || store.0.asked.load(Ordering::SeqCst);
    assert_eq!(one.take(1).await, Ok(1));
    assert_eq!(asked(), 0, "there was nothing to be dated");
    for second in 0..62 {
        assert_eq!(other.take(1).await, Ok(1));
        assert_eq!(one.take(1).await, Ok(1));
        assert_eq!(asked(), if second < 60 { 2 } else { 4 }, "{second}");
        sleep(Duration::from_secs(1)).await;
    }
    other.end().await;
    assert_eq!(asked(), 4);
    // A process without rivals does not read, until it goes.
    for _ in 0..70 {
        assert_eq!(one.take(1).await, Ok(1));
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(asked(), 4);
    one.end().await;
    assert_eq!(asked(), 5);
}
