//! The proxy itself, before a server that says again what it is told.

use crate::rig::proxy::{Mode, Proxy};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

/// A server that tells what it was told, and answers with it.
async fn echo() -> (SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let told = told.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 64];
                while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                    told.send(buffer[..read].to_vec()).unwrap();
                    stream.write_all(&buffer[..read]).await.unwrap();
                }
            });
        }
    });
    (address, heard)
}

async fn ask(stream: &mut TcpStream, question: &[u8]) -> io::Result<Vec<u8>> {
    stream.write_all(question).await?;
    let mut answer = vec![0; question.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Waits until the proxy has swallowed a number of bytes.
async fn swallowed(proxy: &Proxy, bytes: usize) {
    while proxy.swallowed() < bytes as u64 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(proxy.swallowed(), bytes as u64);
}

/// Nothing comes of it, as long as one cares to look: what may take for ever is not timed, only what must not happen.
async fn nothing<T: std::fmt::Debug>(future: impl Future<Output = T>) {
    if let Ok(something) = timeout(Duration::from_millis(50), future).await {
        panic!("{something:?}");
    }
}

#[tokio::test]
async fn bytes_are_counted_by_connection() {
    let (server, _heard) = echo().await;
    let proxy = Proxy::before(server).await.unwrap();
    let mut first = TcpStream::connect(proxy.address()).await.unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&mut first, b"hello").await.unwrap(), b"hello");
    }
    let mut second = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut second, b"hello").await.unwrap(), b"hello");
    assert_eq!(proxy.exchanges(), [3, 1]);
}

#[tokio::test]
async fn a_delay_lasts_both_ways_and_keeps_the_order() {
    let (server, _heard) = echo().await;
    let proxy = Proxy::before(server).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    ask(&mut stream, b"hello").await.unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(30)));
    let sent = Instant::now();
    for part in [b"one", b"two"] {
        stream.write_all(part).await.unwrap();
    }
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"onetwo");
    assert!(sent.elapsed() >= Duration::from_millis(60));
}

#[tokio::test]
async fn a_black_hole_keeps_connections_and_loses_their_bytes() {
    let (server, mut heard) = echo().await;
    let proxy = Proxy::before(server).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    ask(&mut stream, b"before").await.unwrap();
    assert_eq!(heard.recv().await.unwrap(), b"before");
    let mut idle = TcpStream::connect(proxy.address()).await.unwrap();
    ask(&mut idle, b"idle").await.unwrap();
    assert_eq!(heard.recv().await.unwrap(), b"idle");

    proxy.set(Mode::Blackhole);
    nothing(ask(&mut stream, b"lost")).await;
    nothing(heard.recv()).await;
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    nothing(ask(&mut new, b"lost too")).await;
    swallowed(&proxy, b"lostlost too".len()).await;

    proxy.set(Mode::Pass);
    // Those that lost something are over, and the one that lost nothing goes on.
    assert!(ask(&mut stream, b"after").await.is_err());
    assert!(ask(&mut new, b"after").await.is_err());
    assert_eq!(ask(&mut idle, b"after").await.unwrap(), b"after");
    assert_eq!(heard.recv().await.unwrap(), b"after");
}

#[tokio::test]
async fn a_cut_resets_present_and_new_connections() {
    let (server, _heard) = echo().await;
    let proxy = Proxy::before(server).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    ask(&mut stream, b"before").await.unwrap();
    proxy.set(Mode::Cut);
    assert_eq!(
        stream.read(&mut [0]).await.unwrap_err().kind(),
        io::ErrorKind::ConnectionReset
    );
    let new = TcpStream::connect(proxy.address()).await;
    assert!(match new {
        Ok(mut new) => ask(&mut new, b"new").await.is_err(),
        Err(_) => true,
    });
    proxy.set(Mode::Pass);
    let mut again = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut again, b"again").await.unwrap(), b"again");
}

#[tokio::test]
async fn lost_replies_belong_to_requests_that_arrived() {
    let (server, mut heard) = echo().await;
    let proxy = Proxy::before(server).await.unwrap();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    ask(&mut stream, b"before").await.unwrap();
    heard.recv().await.unwrap();
    proxy.set(Mode::LoseReplies);
    for question in [b"one", b"two"] {
        nothing(ask(&mut stream, question)).await;
        assert_eq!(heard.recv().await.unwrap(), question);
    }
    swallowed(&proxy, b"onetwo".len()).await;
    proxy.set(Mode::Pass);
    assert!(ask(&mut stream, b"after").await.is_err());
    // What was asked after that was not heard.
    nothing(heard.recv()).await;
}
