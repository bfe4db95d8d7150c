//! The servers and processes of the rig themselves.

use crate::redis::Redis;
use crate::rig::history::{Event, NAP, Writer, read};
use crate::rig::instant::{nanos, now};
use crate::rig::process::{Process, told, until_closed};
use crate::rig::server::Server;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Its answer, within a number of milliseconds.
fn ping(server: &Server<Redis>, within: u64) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server.address())?;
    stream.set_read_timeout(Some(Duration::from_millis(within)))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn set(server: &Server<Redis>, key: &str) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(format!("SET {key} 1\r\n").as_bytes()).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

#[tokio::test]
async fn a_server_is_stopped_continued_and_restarted_with_nothing() {
    let mut server = Server::start(Redis).await.unwrap();
    assert_eq!(server.keys().unwrap(), [""; 0]);
    set(&server, "one");
    set(&server, "two");
    let mut keys = server.keys().unwrap();
    keys.sort();
    assert_eq!(keys, ["one", "two"]);
    server.forget_scripts().unwrap();
    assert_eq!(server.keys().unwrap().len(), 2);

    server.pause().unwrap();
    assert!(ping(&server, 100).is_err());
    server.resume().unwrap();
    assert_eq!(ping(&server, 60_000).unwrap(), "+PONG\r\n");

    let address = server.address();
    server.kill().unwrap();
    assert!(ping(&server, 60_000).is_err());
    server.restart().await.unwrap();
    assert_eq!((server.address(), server.keys().unwrap().len()), (address, 0));
}

#[test]
#[ignore = "a process of the rig"]
fn a_process_that_waits() {
    let (process, history): (u32, PathBuf) = told().expect("started by the rig");
    let writer = Arc::new(Writer::create(&history).unwrap());
    let (stop, stopped) = mpsc::channel();
    let watching = Arc::clone(&writer).watch_stalls(process, stopped);
    writer.write(&Event::Left { keys: 0 });
    until_closed().join().unwrap();
    drop(stop);
    watching.join().unwrap();
}

#[test]
fn a_process_receives_its_orders_and_ends_when_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let process = Process::start("served::a_process_that_waits", &(7, &history)).unwrap();
    while read(&history).unwrap_or_default().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    process.pause().unwrap();
    let from = now();
    std::thread::sleep(Duration::from_millis(50));
    let until = now();
    process.resume().unwrap();
    assert!(process.close().unwrap().success());

    // It knows that it was stopped: for as long as it was, and perhaps longer.
    let stalled = read(&history).unwrap().into_iter().any(|event| match event {
        Event::Stalled {
            process,
            from: begun,
            until: ended,
        } => process == 7 && begun <= from + nanos(NAP) && ended >= until,
        _ => false,
    });
    assert!(stalled && until - from >= nanos(Duration::from_millis(50)));
}

#[test]
fn a_process_that_fails_or_is_killed_has_not_succeeded() {
    let nowhere = "/nowhere/history";
    let failed = Process::start("served::a_process_that_waits", &(7, nowhere)).unwrap();
    assert!(!failed.close().unwrap().success());
    let folder = tempfile::tempdir().unwrap();
    let mut killed = Process::start("served::a_process_that_waits", &(7, folder.path().join("history"))).unwrap();
    killed.kill().unwrap();
    assert!(!killed.close().unwrap().success());
}
