use super::*;
use std::net::SocketAddr;
use std::time::Instant;

const DRIVERS: [Choice; 2] = [Choice::Epoll, Choice::Auto];

fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

#[test]
fn epoll_runs_when_it_is_asked_for_and_says_so() {
    let mut runtime = build(Choice::Epoll).unwrap();
    assert_eq!((runtime.driver, runtime.why.as_str()), (Driver::Epoll, "asked for"));
    assert_eq!(runtime.block_on(async { current() }), Driver::Epoll);
}

#[test]
fn echo_over_two_listeners_of_one_port() {
    for driver in DRIVERS {
        run(driver, async {
            let first = Listener::bind(local()).unwrap();
            let address = first.address().unwrap();
            let second = Listener::bind(address).unwrap();
            assert!(port_is_free(address).is_err());
            for listener in [first, second] {
                spawn(async move {
                    while let Ok(stream) = listener.accept().await {
                        spawn(async move {
                            let (mut reader, mut writer) = stream.split();
                            while let (Ok(1..), heard) = reader.read(Vec::with_capacity(64)).await {
                                let half = heard.len() / 2;
                                let second = heard[half..].to_vec();
                                let (written, ..) = writer.write_both(heard[..half].to_vec(), second).await;
                                assert_eq!(written.unwrap(), heard.len());
                            }
                        });
                    }
                });
            }
            for _ in 0..16 {
                let (mut reader, mut writer) = connect(address).await.unwrap().split();
                for n in 0..4u8 {
                    assert_eq!(writer.write(vec![9, 1, 2, n], 1).await.0.unwrap(), 3);
                    let (_, heard) = reader.read(Vec::with_capacity(64)).await;
                    assert_eq!(heard, [1, 2, n]);
                }
                assert_eq!(writer.delivery(), Delivery::Acknowledged);
            }
        })
        .unwrap();
    }
}

#[test]
fn timers_races_and_yields() {
    for driver in DRIVERS {
        run(driver, async {
            let start = Instant::now();
            assert_eq!(timeout(Duration::from_millis(20), std::future::pending::<()>()).await, None);
            assert!(start.elapsed() >= Duration::from_millis(20));
            assert_eq!(timeout(Duration::from_secs(9), async { 7 }).await, Some(7));
            assert_eq!(race(sleep(Duration::from_secs(9)), async { 1 }).await, Either::Right(1));
            let seen = std::rc::Rc::new(std::cell::Cell::new(false));
            let set = seen.clone();
            spawn(async move { set.set(true) });
            yield_now().await;
            assert!(seen.get());
        })
        .unwrap();
    }
}

#[test]
fn a_bell_rung_before_the_wait_is_heard() {
    for driver in DRIVERS {
        run(driver, async {
            let bell = Ringer::new().unwrap();
            let mut door = bell.doorbell().unwrap();
            bell.ring();
            bell.ring();
            door.wait().await;
            assert_eq!(timeout(Duration::from_millis(20), door.wait()).await, None);
            let other = bell.clone();
            let thread = std::thread::spawn(move || other.ring());
            door.wait().await;
            thread.join().unwrap();
        })
        .unwrap();
    }
}

/// What a container engine's default profile does: io_uring_setup is refused although the kernel has it.
#[test]
fn epoll_takes_over_where_rings_are_forbidden() {
    std::thread::spawn(|| {
        forbid_rings();
        let runtime = build(Choice::Auto).unwrap();
        assert_eq!(runtime.driver, Driver::Epoll);
        assert!(runtime.why.contains("not permitted"), "{}", runtime.why);
        assert!(build(Choice::Uring).is_err());
    })
    .join()
    .unwrap();
}

/// For this thread only: a filter that answers EPERM to one system call and lets all others through.
fn forbid_rings() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // The call's number.
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program outlives the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}
