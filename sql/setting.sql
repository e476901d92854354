create table agent_sessions.setting (
  name text collate "C" primary key,
  value text not null
);

comment on table agent_sessions.setting is 'What access functions were told to keep, since a dump does not carry it otherwise';
comment on column agent_sessions.setting.name is 'force_rls';
comment on column agent_sessions.setting.value is 'on or off';
