//! One row of a bulk redrive. Data plane 10.3.

use crate::cluster::{DEFAULT_TENANT, Db};

/// What refuses a row for a moment moves it another time; what refuses it for good is counted, and the next one comes.
#[test]
fn a_row_that_met_a_passing_error_comes_again() {
    let db = Db::new();
    db.sql(&format!(
        "insert into queen.redrives (tenant_id, queue, failed_from, failed_to, rate, dry_run, state, matched)
         values ('{DEFAULT_TENANT}', 'q', 'epoch', now(), 1, false, 'running', 1)"
    ));
    let redrive = db.sql("select id from queen.redrives");
    db.sql(&format!(
        "create function public.tried() returns text language plpgsql as $f$
         begin
             return queen.redrive_row('{DEFAULT_TENANT}', jsonb_build_object('redrive', '{redrive}', 'failedAt', now(),
                 'id', gen_random_uuid())) ->> 'result';
         exception when others then
             return sqlstate;
         end $f$"
    ));
    let tried = |code: &str| {
        db.sql(&format!(
            "create or replace function queen.replay_dead_letter(p_tenant uuid, p_args jsonb) returns json
             language plpgsql as $f$ begin raise exception 'it met {code}' using errcode = '{code}'; end $f$"
        ));
        let result = db.sql("select public.tried()");
        (result, db.sql("select failed || ' ' || (after_at = '-infinity') from queen.redrives"))
    };
    for code in ["40001", "40P01", "55P03", "57P01", "53200", "25006"] {
        assert_eq!(tried(code), (code.to_owned(), "0 true".to_owned()));
    }
    assert_eq!(tried("22021"), ("failed".to_owned(), "1 false".to_owned()));
}
