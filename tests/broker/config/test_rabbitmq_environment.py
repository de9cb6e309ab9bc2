"""RabbitMQ's variables, and its files beside rabbitmq.conf: obeyed, harmless, warned of, or refused."""

import pytest

from leveret.broker.config.config import Config, ConfigError, Listener, load


def loaded(tmp_path, *, advanced: str = "", **environ: str) -> Config:
    if advanced:
        (tmp_path / "advanced.config").write_text(advanced)
        environ["RABBITMQ_ADVANCED_CONFIG_FILE"] = str(tmp_path / "advanced")
    return load(environ=environ)


@pytest.mark.parametrize(
    ("text", "attribute", "expected"),
    [
        ("[{rabbit, [{consumer_timeout, 3600000}]}].", "consumer_timeout", 3600.0),
        ("[{rabbit, [{consumer_timeout, undefined}]}].", "consumer_timeout", 0.0),
        ('[{rabbit, [{tcp_listeners, [5673, {"::1", 5674}]}]}].', "listeners", (Listener("", 5673), Listener("::1", 5674))),
        ("[{rabbit, [{tcp_listeners, []}]}].", "listeners", ()),
        ("[{rabbit, [{vm_memory_high_watermark, 0.3}]}].", "memory_relative", 0.3),
        ('[{rabbit, [{vm_memory_high_watermark, {absolute, "1GB"}}]}].', "memory_absolute", 10**9),
        ("[{rabbit, [{disk_free_limit, {mem_relative, 1.5}}]}].", "disk_free_relative", 1.5),
        ("[{rabbit, [{disk_free_limit, 1000}]}].", "disk_free_absolute", 1000),
        ("[{rabbit, [{loopback_users, []}]}].", "loopback_users", frozenset()),
        ('[{rabbit, [{loopback_users, [<<"ada">>]}]}].', "loopback_users", frozenset({"ada"})),
        ("[{rabbit, [{auth_mechanisms, ['PLAIN', 'EXTERNAL']}]}].", "auth_mechanisms", ("PLAIN", "EXTERNAL")),
        ("[{rabbit, [{channel_max, 7}]}, {kernel, [{net_ticktime, 120}]}, {lager, [x]}]. % end", "channel_max", 7),
    ],
)  # fmt: skip
def test_advanced_config_sets_what_the_keys_of_rabbitmq_conf_set(tmp_path, text, attribute, expected):
    """A setting of an application is the key of rabbitmq.conf that RabbitMQ translates to it."""
    config = loaded(tmp_path, advanced=text)

    found = getattr(config, attribute)
    assert expected == (frozenset(found) if isinstance(expected, frozenset) else found)
    assert () == config.warnings


def test_settings_in_lists_are_names_with_dots(tmp_path):
    """Users, TLS, the management API and the log have their settings in lists of pairs."""
    config = loaded(
        tmp_path,
        advanced="""[
            {rabbit, [
                {default_user, <<"ada">>}, {default_pass, <<"secret">>}, {default_user_tags, [monitoring]},
                {default_permissions, [<<"a">>, <<"b">>, <<"c">>]},
                {tcp_listen_options, [binary, {packet, raw}, {backlog, 9}, {linger, {true, 0}}]},
                {log, [{console, [{level, warning}]}, {categories, [{connection, [{level, error}]}]}]}
            ]},
            {rabbitmq_management, [{tcp_config, [{port, 15673}]}, {login_session_timeout, 30}]},
            {rabbitmq_prometheus, [{tcp_config, [{port, 15693}]}]}
        ].""",
    )

    (user,) = config.users
    assert ("ada", "secret", ["monitoring"]) == (user.name, user.password, list(user.tags))
    assert ("a", "b", "c") == user.permissions["/"]
    assert (9, 1800) == (config.backlog, config.management.session_minutes * 60)
    assert (15673, 15693) == (config.management.port, config.prometheus.port)
    assert ("warning", "error") == (config.log.console_level, config.log.levels["connection"])


def test_a_query_of_ldap_is_taken_as_it_stands(tmp_path):
    """A query, which is a term in advanced.config, is the text of the key."""
    query = '{in_group, "cn=${vhost},dc=example"}'
    config = loaded(
        tmp_path,
        advanced=f"""[{{rabbit, [{{auth_backends, [rabbit_auth_backend_ldap]}}]}},
            {{rabbitmq_auth_backend_ldap, [{{servers, ["dc1"]}}, {{vhost_access_query, {query}}},
             {{resource_access_query, {{constant, true}}}}, {{use_ssl, true}}]}}].""",
    )

    assert ("in_group", "cn=${vhost},dc=example", "member") == config.backends.ldap.queries.vhost_access


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("[{rabbit, [{hipe_compile, true}]}].", "hipe_compile is not supported: setting of the Erlang runtime; ignored"),
        ("[{rabbit, [{delegate_size, 3}]}].", "rabbit.delegate_size is not supported; ignored"),
        ("[{rabbitmq_shovel, [{shovels, []}]}].", "shovel.shovels is not supported: shovels are parameters of virtual hosts"),
        ("[{my_plugin, [{answer, 42}]}].", "my_plugin.answer is not supported; ignored"),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_a_warning(tmp_path, text, warning):
    """A setting that no key stands for, or whose key has no effect, is named with its file."""
    config = loaded(tmp_path, advanced=text)

    assert [True] == [warning in each and "advanced.config" in each for each in config.warnings]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[{rabbit, [{tls_something, true}]}].",
            "rabbit.tls_something is not supported. Remove it to run without it",
        ),
        ("[{rabbit, [{heartbeat, often}]}].", "heartbeat = 'often' must be a duration"),
        ("[{rabbit, [{heartbeat, 5}]}", "cannot read"),
        ("[{rabbit, heartbeat}].", "the settings of rabbit must be a list of {key, value}"),
        ("rabbit.", "expected [{application, [{key, value}]}]."),
        (
            "[{rabbitmq_auth_backend_ldap, [{unknown_query, true}]}].",
            "auth_ldap.unknown_query is not supported",
        ),
    ],
)
def test_a_setting_that_is_invalid_or_protects_something_is_an_error(tmp_path, text, problem):
    """A setting that cannot be read, is wrong, or protects something and has no effect stops the start."""
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, advanced=text)

    assert [True] == [problem in each and "advanced.config" in each for each in caught.value.problems]


def test_arguments_of_erlang_set_keys(tmp_path):
    """`-rabbit KEY VALUE` and `-rabbitmq_management KEY VALUE` set keys; flags of the virtual machine set nothing."""
    (tmp_path / "definitions.json").write_text("{}")
    arguments = (
        f"+P 1048576 -rabbit consumer_timeout 3600000 -rabbit disk_free_limit {{mem_relative, 1.5}} "
        f'-kernel inet_dist_listen_min 1 -rabbitmq_management load_definitions "{tmp_path}/definitions.json"'
    )
    config = loaded(tmp_path, RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=arguments)

    assert (3600.0, 1.5) == (config.consumer_timeout, config.disk_free_relative)
    assert tmp_path / "definitions.json" == config.definitions
    with pytest.raises(ConfigError, match="RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: expected -rabbit KEY VALUE"):
        loaded(tmp_path, RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-rabbit consumer_timeout")


def test_the_environment_takes_precedence_over_arguments_and_these_over_files(tmp_path):
    """Files, advanced.config, arguments of Erlang, variables: the later one counts."""
    (tmp_path / "rabbitmq.conf").write_text(
        "heartbeat = 11\nframe_max = 11111\nchannel_max = 11\ndefault_user = one\n"
    )
    config = loaded(
        tmp_path,
        advanced='[{rabbit, [{frame_max, 22222}, {channel_max, 22}, {default_user, <<"two">>}]}].',
        RABBITMQ_CONFIG_FILE=str(tmp_path / "rabbitmq"),
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-rabbit channel_max 33",
        RABBITMQ_DEFAULT_USER="four",
    )

    assert (11, 22222, 33) == (config.heartbeat, config.frame_max, config.channel_max)
    assert ["four"] == [user.name for user in config.users]


def test_the_classic_file_is_read_if_there_is_no_other(tmp_path):
    """rabbitmq.config is in the form of Erlang; rabbitmq.conf is taken before it."""
    (tmp_path / "rabbitmq.config").write_text("[{rabbit, [{heartbeat, 7}]}].")
    named = {"RABBITMQ_CONFIG_FILE": str(tmp_path / "rabbitmq")}
    assert 7 == load(environ=named).heartbeat
    assert 7 == load([tmp_path / "rabbitmq.config"]).heartbeat
    (tmp_path / "rabbitmq.conf").write_text("heartbeat = 8")
    assert 8 == load(environ=named).heartbeat


def test_the_file_of_variables_is_read(tmp_path):
    """rabbitmq-env.conf has variables with and without RABBITMQ_; the environment wins, and other lines are a warning."""
    file = tmp_path / "rabbitmq-env.conf"
    file.write_text(
        "# ports\nNODE_PORT=5679\nexport RABBITMQ_DEFAULT_USER='ada'\nDEFAULT_VHOST=\"v\"\nulimit -n 65536\n"
    )
    config = loaded(tmp_path, RABBITMQ_CONF_ENV_FILE=str(file), RABBITMQ_DEFAULT_VHOST="w")

    assert (Listener("", 5679),) == config.listeners
    assert (["ada"], ("w",)) == ([user.name for user in config.users], config.vhosts)
    assert (f"{file}:5: only NAME=value is read of the shell's language; ignored",) == config.warnings


def test_a_comment_in_the_file_of_variables_begins_after_a_space(tmp_path):
    """As in the shell, `#` within a value is a part of it."""
    file = tmp_path / "rabbitmq-env.conf"
    file.write_text("DEFAULT_PASS='a #b'  # a password\n  DEFAULT_USER=a#b\n")
    config = loaded(tmp_path, RABBITMQ_CONF_ENV_FILE=str(file))

    assert [("a#b", "a #b")] == [(user.name, user.password) for user in config.users]
    assert () == config.warnings


def test_plugins_that_are_not_here_are_named(tmp_path):
    """A plugin whose features are here is no matter; another one is a warning, or an error if it protects something."""
    file = tmp_path / "enabled_plugins"
    file.write_text("[rabbitmq_management,rabbitmq_prometheus,\n rabbitmq_mqtt].\n")
    config = loaded(
        tmp_path,
        RABBITMQ_ENABLED_PLUGINS_FILE=str(file),
        RABBITMQ_ENABLED_PLUGINS="rabbitmq_shovel,rabbitmq_stream,rabbitmq_consistent_hash_exchange,"
        "rabbitmq_random_exchange,rabbitmq_recent_history_exchange",
    )

    assert {"RABBITMQ_ENABLED_PLUGINS: rabbitmq_stream", f"{file}: rabbitmq_mqtt"} == {
        each.removesuffix(" is not supported: there is no such plugin here; ignored")
        for each in config.warnings
    }
    with pytest.raises(ConfigError, match="rabbitmq_trust_store is not supported"):
        loaded(tmp_path, RABBITMQ_ENABLED_PLUGINS="rabbitmq_trust_store")


@pytest.mark.parametrize("name", ["RABBITMQ_ENABLED_PLUGINS_FILE", "RABBITMQ_CONF_ENV_FILE"])
def test_files_that_do_not_exist_say_nothing(tmp_path, name):
    """RabbitMQ starts without its list of plugins and its file of variables, and so do we."""
    assert () == loaded(tmp_path, **{name: str(tmp_path / "none")}).warnings


@pytest.mark.parametrize(
    ("name", "value"),
    [("RABBITMQ_FEATURE_FLAGS", "a"), ("RABBITMQ_LOG", "debug"), ("RABBITMQ_PLUGINS", "x"), ("RABBITMQ_USERNAME", "ada")],
)  # fmt: skip
def test_a_variable_without_effect_is_a_warning(tmp_path, name, value):
    """A variable that changes RabbitMQ, or its image, and nothing here is named with what to use instead."""
    (warning,) = loaded(tmp_path, **{name: value}).warnings

    assert warning.startswith(f"environment variable {name} is not supported: ")
    assert () == loaded(tmp_path, **{name: ""}).warnings


@pytest.mark.parametrize(
    "name",
    [
        "RABBITMQ_DEFAULT_PASS_FILE",
        "RABBITMQ_DEFAULT_USER_FILE",
        "RABBITMQ_VM_MEMORY_HIGH_WATERMARK",
        *(
            f"RABBITMQ_{beginning}SSL_{ending}"
            for beginning in ("", "MANAGEMENT_")
            for ending in ("CACERTFILE", "CERTFILE", "DEPTH", "FAIL_IF_NO_PEER_CERT", "KEYFILE", "VERIFY")
        ),
    ],
)
def test_a_variable_that_protects_something_is_an_error(tmp_path, name):
    """The variables that RabbitMQ's image refuses are refused, as a password or a certificate would not be used."""
    with pytest.raises(
        ConfigError, match=f"environment variable {name} is not supported: use a configuration file"
    ):
        loaded(tmp_path, **{name: "/run/secrets/it"})
    assert () == loaded(tmp_path, **{name: ""}).warnings


@pytest.mark.parametrize(
    "name",
    ["RABBITMQ_ERLANG_COOKIE", "RABBITMQ_USE_LONGNAME", "RABBITMQ_CTL_ERL_ARGS", "RABBITMQ_SERVICE_HOST", "RABBITMQ_URL"],
)  # fmt: skip
def test_other_variables_are_harmless(tmp_path, name):
    """Those of the Erlang runtime, of clustering, of container platforms and of applications are no matter."""
    assert () == loaded(tmp_path, **{name: "x"}).warnings
