//! Connections over real sockets, on both drivers, with a service of a few words.

use super::*;
use crate::http::head::tests::{BAD_HEADS, BAD_LINES, post_with};
use crate::http::refusals::Refusal;
use crate::limits::{HEADERS_MAX, TARGET_BYTES_MAX};
use crate::rt::{Choice, Listener, Ringer, run};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

/// What the test sees of the service's side.
struct Seen {
    /// `METHOD path body-length` of each handled request, in order.
    handled: Mutex<Vec<String>>,
    parked: AtomicUsize,
    /// `wait` requests that went on.
    rung: AtomicUsize,
    gone: AtomicUsize,
    given_back: Mutex<Vec<u128>>,
    stop: Ringer,
    /// Lets one `wait` request go on.
    go: Ringer,
}

impl Seen {
    fn new() -> Arc<Seen> {
        Arc::new(Seen {
            handled: Mutex::default(),
            parked: AtomicUsize::new(0),
            rung: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
            given_back: Mutex::default(),
            stop: Ringer::new().unwrap(),
            go: Ringer::new().unwrap(),
        })
    }
}

struct Words(Arc<Seen>);

impl Service for Words {
    type Ticket = ();

    async fn admit(&self, head: &Head) -> Result<(), Response> {
        match head.segments[0].as_str() {
            "nowhere" => Err(Refusal::NoSuchRoute.response()),
            _ => Ok(()),
        }
    }

    fn handle(&self, (): (), request: Request) -> Pin<Box<dyn Future<Output = Response>>> {
        let seen = self.0.clone();
        Box::pin(async move {
            let line = format!("{} /{} {}", request.method.name(), request.segments.join("/"), request.body.len());
            seen.handled.lock().unwrap().push(line.clone());
            let number = || request.segments[1].parse::<usize>().unwrap();
            match request.segments[0].as_str() {
                "park" => {
                    seen.parked.fetch_add(1, SeqCst);
                    request.gone.wait().await;
                    seen.gone.fetch_add(1, SeqCst);
                    Response::empty(204)
                }
                "wait" => {
                    seen.parked.fetch_add(1, SeqCst);
                    seen.go.doorbell().unwrap().wait().await;
                    seen.rung.fetch_add(1, SeqCst);
                    Response::text(200, line)
                }
                "claims" => {
                    let mut response = Response::text(200, vec![b'x'; number()]);
                    response.claims = Some((LeaseId(7), vec![]));
                    if request.segments.len() > 2 {
                        seen.parked.fetch_add(1, SeqCst);
                        request.gone.wait().await;
                    }
                    response
                }
                "room" => {
                    if let Err(refusal) = request.room(number()).await {
                        return refusal.response();
                    }
                    seen.rung.fetch_add(1, SeqCst);
                    Response::text(200, vec![b'x'; number()])
                }
                "big" => Response::text(200, (0..number()).map(|n| n as u8).collect::<Vec<_>>()),
                "sum" => Response::text(200, request.body.iter().map(|&b| b as usize).sum::<usize>().to_string()),
                "none" => Response::empty(204),
                _ => Response::text(200, line),
            }
        })
    }

    fn give_back(&self, lease: LeaseId, _: Vec<(PartitionId, GroupId)>) {
        self.0.given_back.lock().unwrap().push(lease.0);
    }

    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let stop = self.0.stop.clone();
        Box::pin(async move { stop.doorbell().unwrap().wait().await })
    }
}

/// Runs `test` against a server on each driver; afterwards the server must end by itself.
fn served(limits: Limits, test: impl Fn(Server)) {
    for driver in [Choice::Epoll, Choice::Auto] {
        let seen = Seen::new();
        let (send, receive) = mpsc::channel();
        let (theirs, limits) = (seen.clone(), limits.clone());
        let thread = std::thread::spawn(move || {
            run(driver, async move {
                let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
                send.send(listener.address().unwrap()).unwrap();
                serve(Rc::new(Words(theirs)), listener, limits, None).await;
            })
            .unwrap()
        });
        let address = receive.recv().unwrap();
        test(Server { address, seen: seen.clone() });
        seen.stop.ring();
        thread.join().unwrap();
    }
}

struct Server {
    address: SocketAddr,
    seen: Arc<Seen>,
}

impl Server {
    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Client { stream, input: Vec::new() }
    }

    fn handled(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.handled.lock().unwrap())
    }

    fn until(&self, what: &str, condition: impl Fn(&Seen) -> bool) {
        let start = Instant::now();
        while !condition(&self.seen) {
            assert!(start.elapsed() < Duration::from_secs(20), "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
    fn has(&self, line: &str) -> bool {
        self.head.lines().any(|l| l.eq_ignore_ascii_case(line))
    }
}

impl Client {
    fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        self.stream.write_all(bytes.as_ref()).unwrap();
        self
    }

    fn get(&mut self, path: &str) -> &mut Client {
        self.send(get(path))
    }

    fn more(&mut self) -> usize {
        let mut piece = [0; 65536];
        match self.stream.read(&mut piece) {
            Ok(read) => {
                self.input.extend_from_slice(&piece[..read]);
                read
            }
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => 0,
            Err(e) => panic!("{e}; so far {:?}", String::from_utf8_lossy(&self.input)),
        }
    }

    /// The next answer; its body as its own `content-length` says, none after HEAD.
    fn answer_to(&mut self, head_only: bool) -> Answer {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.input, b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.more() > 0, "closed within {:?}", String::from_utf8_lossy(&self.input));
        };
        let head = String::from_utf8(self.input.drain(..end).collect()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length = if head_only { 0 } else { length.map_or(0, |n| n.parse().unwrap()) };
        while self.input.len() < length {
            assert!(self.more() > 0, "closed within a body");
        }
        let body = self.input.drain(..length).collect();
        Answer { status: head[9..12].parse().unwrap(), head, body }
    }

    #[track_caller]
    fn answer(&mut self) -> Answer {
        self.answer_to(false)
    }

    #[track_caller]
    fn expect(&mut self, status: u16, text: &str) {
        let answer = self.answer();
        assert_eq!((answer.status, answer.text()), (status, text));
    }

    /// Nothing more comes.
    #[track_caller]
    fn closed(&mut self) {
        while self.more() > 0 {}
        assert_eq!(String::from_utf8_lossy(&self.input), "");
    }

    #[track_caller]
    fn refused(&mut self, status: u16) {
        let answer = self.answer();
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.has("connection: close"), "{answer:?}");
        self.closed();
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn quick() -> Limits {
    Limits {
        head_timeout: Duration::from_millis(60),
        body_timeout: Duration::from_millis(60),
        write_timeout: Duration::from_millis(60),
        idle_timeout: Duration::from_millis(200),
        tick: Duration::from_millis(10),
        ..Limits::default()
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    served(Limits::default(), |server| {
        let mut client = server.client();
        let requests: String = (0..1000).map(|n| get(&format!("/n/{n}"))).collect();
        let mut sender = client.stream.try_clone().unwrap();
        let sending = std::thread::spawn(move || sender.write_all(requests.as_bytes()).unwrap());
        (0..1000).for_each(|n| client.expect(200, &format!("GET /n/{n} 0")));
        sending.join().unwrap();
        // A parked request holds back those behind it, bodies included, and they survive it.
        let behind = post("/n/1", &"x".repeat(100_000)) + &get("/n/2") + &post("/n/3", "y");
        let mut sender = client.stream.try_clone().unwrap();
        let before = server.seen.parked.load(SeqCst);
        let sending = std::thread::spawn(move || sender.write_all((get("/wait") + &behind).as_bytes()).unwrap());
        server.until("parked", |seen| seen.parked.load(SeqCst) > before);
        server.seen.go.ring();
        for line in ["GET /wait 0", "POST /n/1 100000", "GET /n/2 0", "POST /n/3 1"] {
            client.expect(200, line);
        }
        sending.join().unwrap();
    });
}

#[test]
fn requests_arrive_in_single_bytes() {
    served(Limits::default(), |server| {
        let mut client = server.client();
        let chunked =
            "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\nT: u\r\n\r\n";
        for byte in (post("/b", "hello") + chunked + &get("/g")).bytes() {
            client.send([byte]);
        }
        ["POST /b 5", "POST /c 3", "GET /g 0"].iter().for_each(|line| client.expect(200, line));
    });
}

#[test]
fn no_smuggled_request_runs() {
    served(Limits::default(), |server| {
        let canary = get("/canary");
        let bad = BAD_LINES.iter().map(|lines| post_with(lines)).chain(BAD_HEADS.iter().map(|head| head.to_string()));
        for head in bad {
            for body in ["", "hello", "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n"] {
                let mut client = server.client();
                client.send(format!("{head}{body}{canary}"));
                client.refused(400);
            }
        }
        for body in [
            "0x5\r\nhello\r\n0\r\n\r\n",
            "5\nhello\n0\n\n",
            "ffffffffffffffff5\r\nhello",
            "5 \r\nhello\r\n0\r\n\r\n",
            "5\r\nhelloX\r\n0\r\n\r\n",
            "5\r\nhello0\r\n\r\n",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\n A: b\r\n\r\n",
            "-5\r\n",
            "5;a\nhello\r\n0\r\n\r\n",
            "\r\n0\r\n\r\n",
            "0\r\nGET /canary HTTP/1.1\r\n\r\n",
        ] {
            let mut client = server.client();
            client.send(format!("{}{body}{canary}", post_with("Transfer-Encoding: chunked")));
            client.refused(400);
        }
        assert!(server.handled().iter().all(|line| !line.contains("canary")));
    });
}

#[test]
fn continue_is_sent_only_before_a_body_that_is_wanted() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    served(limits, |server| {
        let head = |path: &str, length: usize| {
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n")
        };
        let mut client = server.client();
        for _ in 0..3 {
            client.send(head("/a", 5)).expect(100, "");
            client.send("hello").expect(200, "POST /a 5");
        }
        client.send(head("/a", 0)).expect(200, "POST /a 0");
        // The body came along, so nobody waits.
        client.send(head("/a", 2) + "hi").expect(200, "POST /a 2");
        let chunked = "POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
        client.send(chunked).expect(100, "");
        client.send("1\r\nx\r\n0\r\n\r\n").expect(200, "POST /a 1");
        // Refusals come without it, and close: the client may or may not send the body.
        client.send(head("/a", 1001)).refused(413);
        server.client().send(head("/nowhere", 5)).refused(404);
        server.client().send(post_with("Expect: something")).refused(417);
    });
}

#[test]
fn limits_have_their_statuses() {
    let limits = Limits { body_bytes: 100_000, ..Limits::default() };
    served(limits, |server| {
        let long = "x".repeat(TARGET_BYTES_MAX);
        server.client().get(&format!("/{long}")).refused(414);
        server.client().send(post_with(&vec!["a: b"; HEADERS_MAX + 1].join("\r\n"))).refused(431);
        server.client().send(post_with(&format!("a: {}", "x".repeat(65_536)))).refused(431);
        let exact = "x".repeat(100_000);
        let mut client = server.client();
        client.send(post("/b", &exact)).expect(200, "POST /b 100000");
        let chunks = |n: usize| {
            let chunk = format!("2710\r\n{}\r\n", "y".repeat(10_000));
            format!("{}{}0\r\n\r\n", post_with("Transfer-Encoding: chunked"), chunk.repeat(n))
        };
        client.send(chunks(10)).expect(200, "POST /x 100000");
        let answer = server.client().send(post("/b", &(exact.clone() + "x"))).answer();
        assert_eq!((answer.status, answer.text()), (413, "length limit exceeded"));
        assert!(answer.has("content-type: text/plain; charset=utf-8"));
        server.client().send(chunks(11)).refused(413);
        // The answer comes while the client still has nothing but sent the head.
        let announced = post_with("Content-Length: 99999999999999");
        server.client().send(&announced).refused(413);
        client.send(post_with("Content-Encoding: gzip\r\nContent-Length: 2") + "xx");
        assert_eq!(client.answer().status, 415);
        client.get("/after").expect(200, "GET /after 0");
    });
}

/// A client that only reads after it has written everything gets its 413, not a reset.
#[test]
fn a_refused_body_does_not_destroy_its_answer() {
    let limits = Limits { body_bytes: 1000, ..Limits::default() };
    served(limits, |server| {
        let body = "z".repeat(8 << 20);
        server.client().send(post("/b", &body)).refused(413);
        let chunked = format!("{}800000\r\n{body}\r\n0\r\n\r\n", post_with("Transfer-Encoding: chunked"));
        server.client().send(chunked).refused(413);
        assert!(server.handled().is_empty());
    });
}

#[test]
fn a_small_refused_body_keeps_the_connection() {
    served(Limits::default(), |server| {
        let mut client = server.client();
        for _ in 0..2 {
            client.send(post("/nowhere", &"GET /canary HTTP/1.1\r\n".repeat(100)));
            client.expect(404, r#"{"error":"Not Found","code":"no_such_route"}"#);
            client.get("/here").expect(200, "GET /here 0");
        }
        assert_eq!(server.handled().len(), 2);
        client.send(post("/nowhere", &"x".repeat(65_537))).refused(404);
    });
}

#[test]
fn answers_have_the_form_of_their_method_status_and_version() {
    served(Limits::default(), |server| {
        let mut client = server.client();
        let answer = client.send("HEAD /big/70000 HTTP/1.1\r\nHost: a\r\n\r\n").answer_to(true);
        assert!(answer.has("content-length: 70000") && answer.has("content-type: text/plain; charset=utf-8"));
        let answer = client.get("/none").answer();
        assert!(answer.status == 204 && !answer.head.contains("content-") && answer.head.contains("\r\ndate: "));
        for size in [0, 1, 16 << 10, (16 << 10) + 1, 3 << 20] {
            let answer = client.get(&format!("/big/{size}")).answer();
            assert!(answer.body.iter().copied().eq((0..size).map(|n| n as u8)));
        }
        client.send("GET /v HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert!(client.answer().has("connection: keep-alive"));
        client.send("GET /v HTTP/1.0\r\n\r\n").refused(200);
        let mut client = server.client();
        client.send("GET /v HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".to_string() + &get("/canary"));
        client.refused(200);
        // A client that ends its sending half still gets its answers.
        let mut client = server.client();
        client.send(get("/h") + &get("/i")).stream.shutdown(Shutdown::Write).unwrap();
        client.expect(200, "GET /h 0");
        client.expect(200, "GET /i 0");
        client.closed();
        assert!(server.handled().iter().all(|line| !line.contains("canary")));
    });
}

#[test]
fn bodies_of_every_size_arrive_whole() {
    served(Limits::default(), |server| {
        let mut client = server.client();
        for size in [1, 4000, 4096, 65_535, 65_536, 65_537, 1_000_000, 5_000_000] {
            let body: String = (0..size).map(|n| (b'a' + (n % 23) as u8) as char).collect();
            let sum: usize = body.bytes().map(|b| b as usize).sum();
            client.send(post("/sum", &body)).expect(200, &sum.to_string());
            let chunks: String = body.as_bytes().chunks(7001).fold(String::new(), |mut all, chunk| {
                all += &format!("{:x}\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap());
                all
            });
            let head = "POST /sum HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.send(format!("{head}{chunks}0\r\n\r\n")).expect(200, &sum.to_string());
        }
    });
}

#[test]
fn slow_clients_are_cut_off_and_told() {
    served(quick(), |server| {
        server.client().send("GET / HT").refused(408);
        server.client().send(post_with("Content-Length: 5") + "hell").refused(408);
        server.client().send(post_with("Transfer-Encoding: chunked") + "5\r\nhel").refused(408);
        // One byte now and then is no progress, neither of a head nor of a body.
        for start in ["GET / HTTP/1.1\r\nA:", &post_with("Content-Length: 50000")] {
            let mut client = server.client();
            client.send(start);
            let began = Instant::now();
            while client.stream.write_all(b"x").is_ok() {
                assert!(began.elapsed() < Duration::from_secs(10));
                client.stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
                let mut piece = [0; 4096];
                if let Ok(read) = client.stream.read(&mut piece) {
                    client.input.extend_from_slice(&piece[..read]);
                    break;
                }
            }
            client.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            assert_eq!(client.answer().status, 408);
        }
        // An idle connection ends without a word; a parked one stays.
        server.client().closed();
        let mut client = server.client();
        client.get("/wait");
        server.until("parked", |seen| seen.parked.load(SeqCst) == 1);
        // One that came after it was idle for too long.
        server.client().closed();
        server.seen.go.ring();
        client.expect(200, "GET /wait 0");
        client.closed();
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_off_and_its_claims_go_back() {
    served(quick(), |server| {
        let mut client = server.client();
        client.get("/claims/50000000");
        server.until("given back", |seen| !seen.given_back.lock().unwrap().is_empty());
    });
}

#[test]
fn a_leaving_client_ends_its_parked_request() {
    served(Limits::default(), |server| {
        let clients: Vec<Client> = (0..50)
            .map(|_| {
                let mut client = server.client();
                client.get("/park");
                client
            })
            .collect();
        server.until("parked", |seen| seen.parked.load(SeqCst) == 50);
        assert_eq!(server.seen.gone.load(SeqCst), 0);
        for (n, client) in clients.iter().enumerate() {
            if n % 2 == 0 {
                reset_on_close(&client.stream);
            }
        }
        drop(clients);
        server.until("gone", |seen| seen.gone.load(SeqCst) == 50);
    });
}

#[test]
fn claims_of_an_answer_that_does_not_arrive_go_back_once() {
    served(Limits::default(), |server| {
        let back = || server.seen.given_back.lock().unwrap().len();
        // Delivered: a next request, an orderly end.
        let mut client = server.client();
        assert_eq!(client.get("/claims/100").answer().body.len(), 100);
        client.get("/x").expect(200, "GET /x 0");
        assert_eq!(client.get("/claims/100000").answer().body.len(), 100_000);
        drop(client);
        // An orderly end that the broker began: the answer said that it closes.
        let mut client = server.client();
        client.send("GET /claims/100 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(client.answer().body.len(), 100);
        drop(client);
        // Cut off after the answer was written: whether the client has read it, nobody knows. It keeps its claims.
        let mut client = server.client();
        assert_eq!(client.get("/claims/100").answer().body.len(), 100);
        reset_on_close(&client.stream);
        drop(client);
        let mut client = server.client();
        client.get("/claims/100");
        // The answer is in this socket's buffer, unread: closing resets the connection.
        while client.stream.peek(&mut [0; 1]).unwrap() == 0 {}
        drop(client);
        // Not delivered: the body was asked away, the client had left before, it left in the middle.
        server.client().send("HEAD /claims/5 HTTP/1.1\r\nHost: a\r\n\r\n").answer_to(true);
        server.until("HEAD", |_| back() == 1);
        let mut client = server.client();
        client.get("/claims/5/late");
        server.until("parked", |seen| seen.parked.load(SeqCst) == 1);
        drop(client);
        server.until("left before", |_| back() == 2);
        let mut client = server.client();
        client.get("/claims/20000000");
        while client.stream.peek(&mut [0; 1]).unwrap() == 0 {}
        drop(client);
        server.until("left in the middle", |_| back() == 3);
        assert_eq!(back(), 3);
    });
}

#[test]
fn shutdown_answers_what_runs_and_closes_the_rest() {
    served(Limits::default(), |server| {
        let (mut idle, mut busy) = (server.client(), server.client());
        idle.get("/a").expect(200, "GET /a 0");
        busy.get("/wait");
        server.until("parked", |seen| seen.parked.load(SeqCst) == 1);
        server.seen.stop.ring();
        idle.closed();
        assert!(TcpStream::connect(server.address).is_err());
        server.seen.go.ring();
        busy.refused(200);
    });
}

#[test]
fn newcomers_replace_idle_connections_and_wait_for_busy_ones() {
    let limits = Limits { connections: 3, tick: Duration::from_millis(10), ..Limits::default() };
    served(limits, |server| {
        let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
        for client in &mut clients {
            client.get("/a").expect(200, "GET /a 0");
        }
        let mut fourth = server.client();
        fourth.get("/b").expect(200, "GET /b 0");
        drop((clients, fourth));
        let mut busy: Vec<Client> = (0..3)
            .map(|n| {
                let mut client = server.client();
                client.get("/wait");
                server.until("parked", |seen| seen.parked.load(SeqCst) == n + 1);
                client
            })
            .collect();
        let mut late = server.client();
        late.get("/late");
        late.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(late.stream.read(&mut [0; 1]).is_err());
        late.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        for n in 1..=3 {
            server.seen.go.ring();
            server.until("rung", |seen| seen.rung.load(SeqCst) == n);
        }
        late.expect(200, "GET /late 0");
        drop(busy.drain(..));
    });
}

/// Ten bodies at once where the budget holds one and a half: all arrive, none fails.
#[test]
fn bodies_beyond_the_budget_wait_for_their_turn() {
    let limits = Limits { body_budget_bytes: 3 << 20, body_bytes: 2 << 20, ..Limits::default() };
    served(limits, |server| {
        let body = "x".repeat(2 << 20);
        std::thread::scope(|scope| {
            for _ in 0..10 {
                let (body, mut client) = (&body, server.client());
                scope.spawn(move || client.send(post("/b", body)).expect(200, "POST /b 2097152"));
            }
        });
    });
}

/// Answers of twenty times the budget that nobody reads: large bodies come one at a time, small ones as ever.
#[test]
fn answers_that_nobody_takes_stop_no_request() {
    let limits = Limits { body_budget_bytes: 5 << 20, body_bytes: 2 << 20, ..Limits::default() };
    served(limits, |server| {
        let mut slow: Vec<Client> = (0..2).map(|_| server.client()).collect();
        for client in &mut slow {
            client.get("/big/50000000");
        }
        server.until("both were handled", |seen| seen.handled.lock().unwrap().len() == 2);
        let (body, line) = ("x".repeat(2 << 20), "POST /b 2097152");
        let some_turns = || (0..100).for_each(|_| server.client().get("/a").expect(200, "GET /a 0"));
        let (mut first, mut second) = (server.client(), server.client());
        let all = post("/b", &body);
        let (most, last) = all.as_bytes().split_at(all.len() - 1);
        first.send(most);
        some_turns();
        std::thread::scope(|scope| {
            scope.spawn(|| second.send(&all));
            some_turns();
            let handled = server.seen.handled.lock().unwrap().clone();
            assert!(!handled.iter().any(|was| was == line), "another one is beyond the budget");
            first.send(last).expect(200, line);
        });
        second.expect(200, line);
    });
}

/// Answers that need room before anything is done for them: one is made beyond the budget, the others when it was taken.
#[test]
fn a_large_answer_is_not_made_before_there_is_room_for_it() {
    const BYTES: usize = 50_000_000;
    let limits = Limits { body_budget_bytes: 5 << 20, ..Limits::default() };
    served(limits, |server| {
        let mut slow: Vec<Client> = (0..4).map(|_| server.client()).collect();
        for client in &mut slow {
            client.get(&format!("/room/{BYTES}"));
        }
        server.until("all have come", |seen| seen.handled.lock().unwrap().len() == slow.len());
        // It takes turns with them all.
        server.client().get("/a").expect(200, "GET /a 0");
        server.client().get("/room/1000").answer();
        assert_eq!(server.seen.rung.load(SeqCst), 2, "one large answer and a small one");
        std::thread::scope(|scope| {
            for mut client in slow.drain(..) {
                scope.spawn(move || assert_eq!(client.answer().body.len(), BYTES));
            }
        });
        server.until("all were made", |seen| seen.rung.load(SeqCst) == 5);
    });
}

/// Who left while it waited for room may come again, and is not served twice.
#[test]
fn nothing_is_done_for_a_client_that_left_while_it_waited_for_room() {
    let limits = Limits { body_budget_bytes: 5 << 20, ..Limits::default() };
    served(limits, |server| {
        let mut slow = server.client();
        slow.get("/room/50000000");
        server.until("the first one has room", |seen| seen.rung.load(SeqCst) == 1);
        let mut left = server.client();
        left.get("/room/50000000").stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(left.answer().status, 503);
        assert_eq!(slow.answer().body.len(), 50_000_000);
        server.client().get("/room/1000").answer();
        assert_eq!(server.seen.rung.load(SeqCst), 2);
    });
}

/// A client that reads all the time, and so slowly that others would wait for minutes.
#[test]
fn an_answer_that_others_wait_for_is_taken_in_time_or_cut_off() {
    const BYTES: usize = 5_000_000;
    let limits = Limits { body_budget_bytes: 1 << 20, write_timeout: Duration::from_millis(100), ..Limits::default() };
    served(limits, |server| {
        let (mut slow, mut next) = (server.client(), server.client());
        slow.get(&format!("/room/{BYTES}"));
        server.until("the first one has room", |seen| seen.rung.load(SeqCst) == 1);
        next.get(&format!("/room/{BYTES}"));
        let over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut piece = [0; 512];
                while !over.load(SeqCst) && matches!(slow.stream.read(&mut piece), Ok(1..)) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            assert_eq!(next.answer().body.len(), BYTES);
            over.store(true, SeqCst);
        });
    });
}

/// The task of a connection without its handler; with buffers of 4 KiB for input and output an idle one is small.
#[test]
fn an_idle_connection_is_small() {
    run(Choice::Epoll, async {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let _client = TcpStream::connect(listener.address().unwrap()).unwrap();
        let stream = listener.accept().await.unwrap();
        let shared = super::serve::Shared::new(Rc::new(Words(Seen::new())), Limits::default(), None);
        let size = size_of_val(&shared.connection(stream).run());
        assert!(size <= 3 * 1024, "{size}");
    })
    .unwrap();
}

fn reset_on_close(stream: &TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    // SAFETY: a valid option of an open socket.
    unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), size)
    };
}
