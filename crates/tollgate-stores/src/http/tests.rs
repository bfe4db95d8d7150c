//! Calls, and addresses, against servers with fixed answers.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tollgate::remote::RemoteError;

/// A server that answers each connection with `answer`, and returns the first request.
async fn server(answer: &'static str) -> (Box<str>, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/base/", listener.local_addr().unwrap()).into();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 4096];
        let read = stream.read(&mut buffer).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        if answer.is_empty() {
            // Stays silent until the connection closes.
            while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
        }
        String::from_utf8_lossy(&buffer[..read]).into_owned()
    });
    (address, asked)
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_call_sends_its_headers_and_reads_to_the_end() {
    let (address, asked) = server("HTTP/1.1 200 OK\r\nX-Index: 7\r\nContent-Length: 5\r\n\r\ntrue\n").await;
    let mut options = HttpOptions::new(address, SECOND);
    options.secret("x-token", "secret").unwrap();
    let http = options.connect().unwrap();
    let answer = http.call(Method::PUT, "/v1/a?b", "body", http.timeout()).await.unwrap();
    assert_eq!((answer.status, &*answer.text()), (StatusCode::OK, "true"));
    assert_eq!(answer.headers["x-index"], "7");
    assert!(answer.json::<bool>().unwrap());
    let asked = asked.await.unwrap();
    assert!(
        asked.starts_with("PUT /base/v1/a?b HTTP/1.1\r\n") && asked.ends_with("body"),
        "{asked}"
    );
    assert!(asked.contains("x-token: secret\r\n"), "{asked}");
    assert!(!format!("{http:?}").contains("secret"));
}

#[tokio::test]
async fn a_status_tells_a_refusal_from_an_unavailable_store() {
    for (answer, unavailable) in [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nACL\n", false),
        (
            "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 9\r\n\r\nNo leader",
            true,
        ),
        ("HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n", true),
    ] {
        let (address, _asked) = server(answer).await;
        let http = HttpOptions::new(address, SECOND).connect().unwrap();
        let answer = http.call(Method::GET, "/", "", http.timeout()).await.unwrap();
        let error = answer.json::<bool>().unwrap_err();
        assert_eq!(matches!(error, StoreError::Unreachable { .. }), unavailable, "{error}");
    }
}

#[tokio::test]
async fn a_silent_server_and_a_closed_port_are_told_apart() {
    let (address, _asked) = server("").await;
    let http = HttpOptions::new(address, SECOND).connect().unwrap();
    let after = Duration::from_millis(20);
    let silent = http.call(Method::GET, "/", "", after).await.unwrap_err();
    assert_eq!(silent, StoreError::TimedOut { after });
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let http = HttpOptions::new(format!("http://{free}").into(), SECOND)
        .connect()
        .unwrap();
    let closed = http.call(Method::GET, "/", "", Duration::from_secs(60)).await;
    assert!(matches!(closed, Err(StoreError::Unreachable { .. })), "{closed:?}");
}

#[tokio::test]
async fn an_address_that_cannot_be_is_refused_without_its_secrets() {
    for address in [
        "",
        "somewhere",
        "ftp://a",
        "http://a:hidden@b",
        "http://a?hidden",
        "http://a b:hidden",
    ] {
        let refused = HttpOptions::new(address.into(), SECOND).connect().unwrap_err();
        assert!(matches!(refused, RemoteError::Address { .. }), "{address}: {refused}");
        assert!(!refused.to_string().contains("hidden"), "{refused}");
    }
    let mut options = HttpOptions::new("http://a".into(), SECOND);
    assert!(options.secret("x-token", "two\nlines").is_err());
}

#[test]
fn special_characters_of_a_path_are_escaped() {
    assert_eq!(escaped("a/b-c_d.e~f"), "a/b-c_d.e~f");
    assert_eq!(escaped("a b?c%d#ä"), "a%20b%3Fc%25d%23%C3%A4");
}
