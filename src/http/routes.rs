//! Every route, one line each: method, path, access level, handler; and how a request finds its line.
//!
//! A `:name` takes one segment that is not empty. The first line that matches and takes the method wins, so a literal
//! segment stands before a parameter in the same place (a test holds the order). A GET line answers HEAD too, except
//! where GET changes state (a pop: access read-write). Source: data plane 1.3, 1.4, 15; operations 2.6 to 2.8.

use super::head::Head;
use super::refusals::Refusal;
use super::{Method, Request, Response, ack, pop, push, transaction};
use crate::auth::{Identity, Roles};
use crate::conn::Service;
use crate::core_thread::Core;
use crate::limits::NAME_BYTES_MAX;
use queen_shards::ids::{GroupId, LeaseId, PartitionId, TenantId};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// Who may call a route. Role sets, not a ladder: see [`Access::admits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Public,
    ReadOnly,
    WriteOnly,
    ReadWrite,
    Admin,
}

impl Access {
    /// Whether these roles reach the level. Source: operations 2.4.
    pub fn admits(self, roles: Roles) -> bool {
        let writes_and_reads = roles.admin || roles.read_write;
        match self {
            Access::Public => true,
            Access::ReadOnly => writes_and_reads || roles.read_only,
            Access::WriteOnly => writes_and_reads || roles.write_only,
            Access::ReadWrite => writes_and_reads,
            Access::Admin => roles.admin,
        }
    }
}

/// What a handler returns to the connection.
pub type Answer = Pin<Box<dyn Future<Output = Response>>>;
/// A handler as the table holds it.
pub type Handler = fn(Rc<Core>, Request, Params) -> Answer;

/// One line of the table.
pub struct Route {
    pub method: Method,
    pub pattern: &'static str,
    pub access: Access,
    /// Whether it resolves the tenant; of the whole cell otherwise. Source: operations 2.7, 2.8.
    pub tenant: bool,
    pub handler: Handler,
}

/// The `:name` segments of a request's path, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params(Vec<(&'static str, String)>);

impl Params {
    /// The segment the route calls `:name`. A name the route does not have is a mistake of its handler.
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(key, _)| *key == name);
        debug_assert!(found.is_some(), "the route has no :{name}");
        found.map_or("", |(_, value)| value)
    }

    /// For tests of handlers.
    pub fn of(pairs: &[(&'static str, &str)]) -> Params {
        Params(pairs.iter().map(|&(name, value)| (name, value.to_string())).collect())
    }
}

/// `METHOD "path" Access handler,` lines: those of a tenant, a semicolon, those of the whole cell. A handler is
/// `pub async fn(&Rc<Core>, &Request, &Params) -> Response`.
macro_rules! routes {
    ($($method:ident $pattern:literal $access:ident $handler:path,)*;
     $($cell_method:ident $cell_pattern:literal $cell_access:ident $cell_handler:path,)*) => {
        &[
            $(routes!(@line true $method $pattern $access $handler),)*
            $(routes!(@line false $cell_method $cell_pattern $cell_access $cell_handler),)*
        ]
    };
    (@line $tenant:literal $method:ident $pattern:literal $access:ident $handler:path) => {
        Route {
            method: Method::$method,
            pattern: $pattern,
            access: Access::$access,
            tenant: $tenant,
            handler: |core, request, params| Box::pin(async move { $handler(&core, &request, &params).await }),
        }
    };
}

/// The hot ones first: the table is searched from the top.
pub static ROUTES: &[Route] = routes! {
    Post   "/api/v1/push"                                                       WriteOnly push::push,
    Get    "/api/v1/pop/queue/:queue"                                           ReadWrite pop::queue,
    Get    "/api/v1/pop/queue/:queue/partition/:partition"                      ReadWrite pop::partition,
    Get    "/api/v1/pop"                                                        ReadWrite pop::discovery,
    Post   "/api/v1/ack/batch"                                                  ReadWrite ack::batch,
    Post   "/api/v1/ack"                                                        ReadWrite ack::single,
    Post   "/api/v1/lease/:leaseId/extend"                                      ReadWrite super::lease::extend,
    Post   "/api/v1/transaction"                                                ReadWrite transaction::transaction,

    Post   "/api/v1/configure"                                                  ReadWrite super::configure::configure,
    Get    "/api/v1/resources/queues"                                           ReadOnly  super::resources::queues,
    Get    "/api/v1/resources/queues/:queue"                                    ReadOnly  super::resources::queue,
    Get    "/api/v1/resources/queues/:queue/depth"                              ReadOnly  super::resources::depth,
    Delete "/api/v1/resources/queues/:queue"                                    Admin     super::resources::delete,
    Get    "/api/v1/resources/namespaces"                                       ReadOnly  super::resources::namespaces,
    Get    "/api/v1/resources/tasks"                                            ReadOnly  super::resources::tasks,
    Get    "/api/v1/resources/partitions"                                       ReadOnly  super::resources::partitions,
    Get    "/api/v1/resources/overview"                                         ReadOnly  super::resources::overview,

    Get    "/api/v1/messages"                                                   ReadOnly  super::messages::list,
    Get    "/api/v1/messages/:partitionId/:transactionId"                       ReadOnly  super::messages::detail,
    Delete "/api/v1/messages/:partitionId/:transactionId"                       ReadWrite super::dead_letters::delete,
    Post   "/api/v1/messages/:partitionId/:transactionId/retry"                 ReadWrite super::dead_letters::retry,
    Get    "/api/v1/dlq"                                                        ReadOnly  super::dead_letters::list,
    Delete "/api/v1/dlq"                                                        Admin     super::dead_letters::purge,
    Post   "/api/v1/dlq/redrive"                                                Admin     super::redrives::start,
    Get    "/api/v1/dlq/redrive/:id"                                            Admin     super::redrives::progress,
    Delete "/api/v1/dlq/redrive/:id"                                            Admin     super::redrives::cancel,
    Post   "/api/v1/dlq/:id/replay"                                             ReadWrite super::dead_letters::replay,
    Get    "/api/v1/consumer-groups"                                            ReadOnly  super::groups::list,
    Get    "/api/v1/consumer-groups/lagging"                                    ReadOnly  super::groups::lagging,
    Get    "/api/v1/consumer-groups/:group"                                     ReadOnly  super::groups::detail,
    Post   "/api/v1/consumer-groups/:group/subscription"                        ReadWrite super::groups::subscription,
    Post   "/api/v1/consumer-groups/:group/queues/:queue/seek"                  ReadWrite super::groups::seek_queue,
    Post   "/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek" ReadWrite super::groups::seek_partition,
    Delete "/api/v1/consumer-groups/:group"                                     Admin     super::groups::delete,
    Delete "/api/v1/consumer-groups/:group/queues/:queue"                       Admin     super::groups::delete_in_queue,
    Post   "/api/v1/fetch"                                                      ReadOnly  super::fetch::fetch,
    Post   "/api/v1/partitions/changed"                                         ReadOnly  super::fetch::changed,

    Get    "/api/v1/status/queues"                                              ReadOnly  super::status::queues,
    Get    "/api/v1/status/queues/:queue"                                       ReadOnly  super::status::queue,
    ;
    Get    "/api/v1/status"                                                     ReadOnly  super::status::status,
    Get    "/api/v1/status/buffers"                                             ReadOnly  super::status::buffers,
    Get    "/api/v1/system/maintenance"                                         Admin     super::maintenance::get,
    Post   "/api/v1/system/maintenance"                                         Admin     super::maintenance::set,
    Get    "/api/v1/system/maintenance/pop"                                     Admin     super::maintenance::get_pop,
    Post   "/api/v1/system/maintenance/pop"                                     Admin     super::maintenance::set_pop,
    Get    "/api/v1/system/shared-state"                                        Admin     super::maintenance::shared_state,
    Get    "/health"                                                            Public    super::health::health,
    Get    "/health/live"                                                       Public    super::health::live,
    Get    "/metrics"                                                           Public    super::status::metrics,
    Get    "/metrics/prometheus"                                                Public    super::status::prometheus,
    Get    "/status"                                                            ReadOnly  super::status::alive,
    Get    "/"                                                                  Public    super::health::front,
};

/// The line of a request and its parameters, or the answer when there is none.
pub fn find(method: Method, segments: &[String]) -> Result<(&'static Route, Params), Refusal> {
    let mut known = false;
    for route in ROUTES.iter().filter(|route| matches(route.pattern, segments)) {
        if route.takes(method) {
            return Ok((route, params(route.pattern, segments)?));
        }
        known = true;
    }
    Err(if known { Refusal::MethodNotAllowed { allow: allow(segments) } } else { Refusal::NoSuchRoute })
}

impl Route {
    fn takes(&self, method: Method) -> bool {
        self.method == method || (method == Method::Head && self.answers_head())
    }

    fn answers_head(&self) -> bool {
        self.method == Method::Get && matches!(self.access, Access::Public | Access::ReadOnly)
    }

    /// The level a request of `method` needs here: HEAD has no rule of its own, so it needs the default.
    pub fn access_of(&self, method: Method) -> Access {
        match (self.access, method) {
            (Access::Public, _) => Access::Public,
            (_, Method::Head) => Access::ReadWrite,
            (access, _) => access,
        }
    }
}

/// The level of what has no line: unknown paths, known ones with another method. The ordered rules of operations 2.6
/// (rows 13 and 14 by decision D1 of section 12); a test holds the lines of the table against them.
pub fn access_elsewhere(method: Method, path: &str) -> Access {
    let under = |prefixes: &[&str]| prefixes.iter().any(|prefix| path.starts_with(prefix));
    let (get, delete) = (method == Method::Get, method == Method::Delete);
    match path {
        "/health" | "/health/live" | "/metrics" | "/metrics/prometheus" | "/" => Access::Public,
        "/auth/me" | "/auth/login" | "/auth/logout" => Access::Public,
        _ if under(&["/assets/", "/favicon"]) => Access::Public,
        _ if under(&["/api/v1/system/", "/internal/"]) => Access::Admin,
        _ if delete && under(&["/api/v1/consumer-groups/", "/api/v1/resources/queues/"]) => Access::Admin,
        "/api/v1/dlq" if delete => Access::Admin,
        "/api/v1/stats/refresh" => Access::Admin,
        "/status" if get => Access::ReadOnly,
        _ if get && under(READ_PREFIXES) => Access::ReadOnly,
        "/api/v1/fetch" | "/api/v1/partitions/changed" | "/api/v1/resources/kv/list" if method == Method::Post => {
            Access::ReadOnly
        }
        "/streams/v1/state/get" => Access::ReadOnly,
        "/api/v1/push" => Access::WriteOnly,
        _ => Access::ReadWrite,
    }
}

/// What a GET only reads. Source: operations 2.6, row 9.
const READ_PREFIXES: &[&str] = &[
    "/api/v1/status",
    "/api/v1/analytics",
    "/api/v1/resources/",
    "/api/v1/messages",
    "/api/v1/consumer-groups",
    "/api/v1/dlq",
    "/api/v1/traces",
    "/api/v1/kv",
    "/api/v1/timers",
    "/api/v1/ephemeral/queues",
];

/// The methods of a path, as `Allow` lists them; empty when no line matches.
pub fn allow(segments: &[String]) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut add = |name| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    for route in ROUTES.iter().filter(|route| matches(route.pattern, segments)) {
        add(route.method.name());
        if route.answers_head() {
            add("HEAD");
        }
    }
    if !names.is_empty() {
        names.push("OPTIONS");
    }
    names.join(", ")
}

impl Method {
    /// As a request line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
            Method::Other => "",
        }
    }
}

fn parts(pattern: &'static str) -> impl Iterator<Item = &'static str> {
    pattern[1..].split('/')
}

fn matches(pattern: &'static str, segments: &[String]) -> bool {
    let mut segments = segments.iter();
    let all = parts(pattern).all(|part| match (segments.next(), part.starts_with(':')) {
        (Some(segment), true) => !segment.is_empty(),
        (Some(segment), false) => segment == part,
        (None, _) => false,
    });
    all && segments.next().is_none()
}

fn params(pattern: &'static str, segments: &[String]) -> Result<Params, Refusal> {
    let mut params = Vec::new();
    for (part, segment) in parts(pattern).zip(segments) {
        let Some(name) = part.strip_prefix(':') else { continue };
        if matches!(name, "queue" | "partition" | "group") && segment.len() > NAME_BYTES_MAX {
            return Err(Refusal::NameTooLong { what: name });
        }
        params.push((name, segment.clone()));
    }
    Ok(Params(params))
}

/// The tenant of a request. Source: operations 2.8.
pub fn tenant(tenancy: bool, header: Option<&str>) -> Result<TenantId, Refusal> {
    match header.map(str::trim) {
        None | Some("") => Ok(TenantId::DEFAULT),
        Some(_) if !tenancy => Ok(TenantId::DEFAULT),
        Some(text) => canonical_uuid(text).map(TenantId).ok_or(Refusal::BadTenant),
    }
}

/// `8-4-4-4-12` hex digits, nothing else.
fn canonical_uuid(text: &str) -> Option<u128> {
    let bytes = text.as_bytes();
    let canonical = bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    canonical.then(|| uuid::Uuid::parse_str(text).ok()).flatten().map(|uuid| uuid.as_u128())
}

/// The broker's API on one shard.
pub struct Api {
    pub core: Rc<Core>,
    /// QUEEN_TENANCY_HEADER.
    pub tenancy: bool,
}

/// What a head said, for its handler.
pub struct Ticket {
    to: To,
    tenant: TenantId,
    identity: Identity,
}

enum To {
    Route(&'static Route, Params),
    /// OPTIONS: what the path takes.
    Options(String),
}

impl Service for Api {
    type Ticket = Ticket;

    async fn admit(&self, head: &Head) -> Result<Ticket, Response> {
        let found = match head.method {
            Method::Options if head.path == "*" => Ok(To::Options("GET, HEAD, POST, PUT, DELETE, OPTIONS".into())),
            Method::Options => match allow(&head.segments) {
                none if none.is_empty() => Err(Refusal::NoSuchRoute),
                allow => Ok(To::Options(allow)),
            },
            method => find(method, &head.segments).map(|(route, params)| To::Route(route, params)),
        };
        // Who asks comes before what: an unknown path without a token is a 401. Source: operations 2.5.
        let identity = match &self.core.guard {
            None => Identity::default(),
            Some(guard) => {
                let access = match &found {
                    Ok(To::Route(route, _)) => route.access_of(head.method),
                    Ok(To::Options(_)) | Err(_) => access_elsewhere(head.method, &head.path),
                };
                guard.admit(head, access).await.map_err(|denied| Refusal::Denied(denied).response())?
            }
        };
        let to = found?;
        // What has no tenant does not read who names one.
        let tenant = match &to {
            To::Route(route, _) if route.tenant => tenant(self.tenancy, head.tenant.as_deref())?,
            To::Route(..) | To::Options(_) => TenantId::DEFAULT,
        };
        Ok(Ticket { to, tenant, identity })
    }

    fn handle(&self, ticket: Ticket, mut request: Request) -> Answer {
        request.tenant = ticket.tenant;
        request.producer = ticket.identity.subject;
        match ticket.to {
            To::Route(route, params) => (route.handler)(self.core.clone(), request, params),
            To::Options(allow) => {
                Box::pin(std::future::ready(Response { headers: vec![("allow", allow)], ..Response::empty(204) }))
            }
        }
    }

    fn give_back(&self, lease: LeaseId, claims: Vec<(PartitionId, GroupId)>) {
        self.core.give_back(lease, claims);
    }

    fn shutdown(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let core = self.core.clone();
        Box::pin(async move { core.shutdown().await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(path: &str) -> Vec<String> {
        path[1..].split('/').map(String::from).collect()
    }

    #[track_caller]
    fn check(method: Method, path: &str, want: Result<(&str, &[(&'static str, &str)]), Refusal>) {
        let found = find(method, &segments(path)).map(|(route, params)| (route.pattern, params));
        assert_eq!(found, want.map(|(pattern, params)| (pattern, Params::of(params))), "{path}");
    }

    #[test]
    fn a_literal_segment_wins_over_a_parameter() {
        let group = "/api/v1/consumer-groups/:group";
        check(Method::Get, "/api/v1/consumer-groups/lagging", Ok(("/api/v1/consumer-groups/lagging", &[])));
        check(Method::Get, "/api/v1/consumer-groups/a b/c".trim_end_matches("/c"), Ok((group, &[("group", "a b")])));
        check(Method::Delete, "/api/v1/consumer-groups/lagging", Ok((group, &[("group", "lagging")])));
        check(Method::Post, "/api/v1/ack/batch", Ok(("/api/v1/ack/batch", &[])));
    }

    #[test]
    fn parameters_are_whole_segments_and_not_empty() {
        let pinned = "/api/v1/pop/queue/:queue/partition/:partition";
        let params: &[_] = &[("queue", "a"), ("partition", "0")];
        check(Method::Get, "/api/v1/pop/queue/a/partition/0", Ok((pinned, params)));
        for path in ["/api/v1/pop/queue/", "/api/v1/pop/", "/api/v1/push/", "/api", "/api/v1/pop/queue/a/b", "/x"] {
            check(Method::Get, path, Err(Refusal::NoSuchRoute));
        }
        let long = format!("/api/v1/pop/queue/{}", "x".repeat(NAME_BYTES_MAX + 1));
        check(Method::Get, &long, Err(Refusal::NameTooLong { what: "queue" }));
    }

    #[test]
    fn a_known_path_with_another_method_says_what_it_takes() {
        let not_allowed = |allow: &str| Err(Refusal::MethodNotAllowed { allow: allow.into() });
        check(Method::Get, "/api/v1/push", not_allowed("POST, OPTIONS"));
        check(Method::Other, "/api/v1/dlq", not_allowed("GET, HEAD, DELETE, OPTIONS"));
        check(Method::Put, "/api/v1/consumer-groups/lagging", not_allowed("GET, HEAD, DELETE, OPTIONS"));
    }

    #[test]
    fn head_reads_and_never_pops() {
        check(Method::Head, "/health", Ok(("/health", &[])));
        check(Method::Head, "/api/v1/status", Ok(("/api/v1/status", &[])));
        check(Method::Head, "/api/v1/pop", Err(Refusal::MethodNotAllowed { allow: "GET, OPTIONS".into() }));
        let (route, _) = find(Method::Head, &segments("/api/v1/status")).unwrap();
        assert_eq!(route.access_of(Method::Head), Access::ReadWrite);
        assert_eq!(route.access_of(Method::Get), Access::ReadOnly);
    }

    /// The lines of the table are what the ordered rules of operations 2.6 say, except where the contract of 2.7 or a
    /// route of our own says more.
    #[test]
    fn levels_of_the_table_follow_the_rules() {
        for route in ROUTES {
            let rule = access_elsewhere(route.method, route.pattern);
            let ours = route.pattern.starts_with("/api/v1/dlq/redrive");
            assert!(rule == route.access || ours, "{} {}: {rule:?}", route.method.name(), route.pattern);
        }
    }

    #[test]
    fn what_has_no_line_has_a_level() {
        let of = |method, path: &str, want: Access| assert_eq!(access_elsewhere(method, path), want, "{path}");
        of(Method::Get, "/favicon.ico", Access::Public);
        of(Method::Get, "/assets/x.js", Access::Public);
        of(Method::Get, "/index.html", Access::ReadWrite);
        of(Method::Get, "/api/v1/system/maintenance", Access::Admin);
        of(Method::Post, "/internal/api/notify", Access::Admin);
        of(Method::Delete, "/api/v1/consumer-groups/g/x", Access::Admin);
        of(Method::Delete, "/api/v1/dlq/x", Access::ReadWrite);
        of(Method::Get, "/api/v1/analytics/x", Access::ReadOnly);
        of(Method::Head, "/api/v1/analytics/x", Access::ReadWrite);
        of(Method::Post, "/api/v1/resources/kv/list", Access::ReadOnly);
        of(Method::Post, "/streams/v1/state/get", Access::ReadOnly);
        of(Method::Post, "/streams/v1/cycle", Access::ReadWrite);
        of(Method::Get, "/api/v1/push", Access::WriteOnly);
        of(Method::Post, "/api/v1/timers", Access::ReadWrite);
        of(Method::Options, "/api/v1/dlq", Access::ReadWrite);
        of(Method::Get, "/nope", Access::ReadWrite);
    }

    #[test]
    fn every_line_is_well_formed_and_reachable() {
        for route in ROUTES {
            let shape = route.pattern.starts_with('/') && (route.pattern == "/" || !route.pattern.ends_with('/'));
            assert!(shape, "{}", route.pattern);
            let path = route.pattern.replace(':', "x-");
            let (found, _) = find(route.method, &segments(&path)).unwrap();
            assert!(std::ptr::eq(found, route), "{} finds {}", route.pattern, found.pattern);
        }
    }

    #[test]
    fn literal_segments_stand_before_parameters() {
        for (at, later) in ROUTES.iter().enumerate() {
            for earlier in ROUTES[..at].iter().filter(|earlier| earlier.method == later.method) {
                let mut pairs = parts(earlier.pattern).zip(parts(later.pattern));
                let split = pairs.find(|(a, b)| a != b);
                let shadowed = split.is_some_and(|(a, b)| a.starts_with(':') && !b.starts_with(':'));
                let same_length = parts(earlier.pattern).count() == parts(later.pattern).count();
                assert!(!(shadowed && same_length), "{} hides {}", earlier.pattern, later.pattern);
            }
        }
    }

    #[test]
    fn the_tenant_header_counts_only_with_tenancy_on() {
        let id = "0A0B0C0D-0000-4000-8000-000000000007";
        assert_eq!(tenant(true, Some(id)), Ok(TenantId(0x0a0b0c0d_0000_4000_8000_000000000007)));
        for header in [None, Some(""), Some("  ")] {
            assert_eq!(tenant(true, header), Ok(TenantId::DEFAULT));
        }
        for bad in ["x", "0a0b0c0d000040008000000000000007", "{0a0b0c0d-0000-4000-8000-000000000007}"] {
            assert_eq!(tenant(true, Some(bad)), Err(Refusal::BadTenant));
            assert_eq!(tenant(false, Some(bad)), Ok(TenantId::DEFAULT));
        }
    }
}
