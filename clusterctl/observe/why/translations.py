"""The system's messages in other languages, as the C library translates them, by the name of the error."""

# ruff: noqa: RUF001 - letters of other alphabets

from __future__ import annotations

from collections.abc import Mapping

#: Separated by "|", a character that is in no translation.
TRANSLATIONS: Mapping[str, str] = {
    "ENOENT": (
        "没有那个文件或目录|沒有此一檔案或目錄|そのようなファイルやディレクトリはありません|"
        "그런 파일이나 디렉터리가 없습니다|Datei oder Verzeichnis nicht gefunden|"
        "Aucun fichier ou dossier de ce type|Aucun fichier ou dossier de ce nom|"
        "No existe el fichero o el directorio|Ficheiro ou pasta inexistente|"
        "Arquivo ou diretório inexistente|File o directory non esistente|Нет такого файла или каталога|"
        "Немає такого файла або каталогу|Nie ma takiego pliku ani katalogu|Bestand of map bestaat niet|"
        "Böyle bir dosya ya da dizin yok|Adresář nebo soubor neexistuje|Filen eller katalogen finns inte|"
        "Aucun fichier ou répertoire de ce type|No existe el archivo o el directorio|没有該檔案或目錄|"
        "그런 파일이나 디렉토리가 없습니다"
    ),
    "EACCES": (
        "权限不够|拒絕不符權限的操作|許可がありません|허가 거부|Keine Berechtigung|Permission non accordée|"
        "Permiso denegado|Permissão recusada|Permissão negada|Permesso negato|Отказано в доступе|"
        "Відмовлено у доступі|Brak dostępu|Toegang geweigerd|Erişim engellendi|Operace zamítnuta|Åtkomst nekas"
    ),
    "ENOSPC": (
        "设备上没有空间|裝置上已無多餘空間|デバイスに空き領域がありません|장치에 남은 공간이 없음|"
        "Auf dem Gerät ist kein Speicherplatz mehr verfügbar|Aucun espace disponible sur le périphérique|"
        "No queda espacio en el dispositivo|Sem espaço livre no dispositivo|"
        "Não há espaço disponível no dispositivo|Spazio esaurito sul device|"
        "На устройстве не осталось свободного места|Недостатньо місця на пристрої|Brak miejsca na urządzeniu|"
        "Geen ruimte meer over op apparaat|Aygıt üzerinde boş yer yok|Na zařízení není volné místo|Enheten är full"
    ),
    "EDQUOT": (
        "超出磁盘限额|磁碟配額已滿|ディスク使用量制限を超過しました|디스크 할당량이 초과됨|"
        "Der zugewiesene Plattenplatz (Quota) ist überschritten|Débordement du quota d'espace disque|"
        "Se ha excedido la cuota de disco|Quota do disco excedida|Cota da disco excedida|Quota disco superata|"
        "Превышена дисковая квота|Перевищено квоту диска|Przekroczony limit dyskowy|Schijfquotum is overschreden|"
        "Disk kotası aşıldı|Překročena disková kvóta|Diskkvot överskriden"
    ),
    "ECONNREFUSED": (
        "拒绝连接|連線被拒絕|接続を拒否されました|연결이 거부됨|Verbindungsaufbau abgelehnt|Connexion refusée|"
        "Conexión rehusada|Ligação recusada|Conexão recusada|Connessione rifiutata|В соединении отказано|"
        "У з'єднанні відмовлено|Połączenie odrzucone|Verbinding is geweigerd|Bağlantı reddedildi|Spojení odmítnuto|"
        "Förbindelsen förvägrad|连接被拒绝"
    ),
    "ECONNRESET": (
        "连接被对方重设|連線被對方重設|接続が相手からリセットされました|상대편이 연결을 끊음|"
        "Die Verbindung wurde vom Kommunikationspartner zurückgesetzt|"
        "Connexion ré-initialisée par le correspondant|Conexión reinicializada por la máquina remota|"
        "Ligação reposta pelo peer|Conexão fechada pela outra ponta|Connessione interrotta dal corrispondente|"
        "Соединение разорвано другой стороной|Вузол розірвав з’єднання|Połączenie zerwane przez drugą stronę|"
        "Verbinding is weggevallen|Bağlantı karşıdan kesildi|Spojení zrušeno druhou stranou|"
        "Förbindelse borttagen av partnern|连接被对端重置"
    ),
    "ETIMEDOUT": (
        "连接超时|連線超過時間|接続がタイムアウトしました|연결 시간 초과|"
        "Die Wartezeit für die Verbindung ist abgelaufen|Connexion terminée par expiration du délai d'attente|"
        "Expiró el tiempo de conexión|Ligação expirada|Tempo esgotado para conexão|Connessione scaduta|"
        "Время ожидания соединения истекло|Перевищено інтервал очікування з'єднання|"
        "Przekroczony czas oczekiwania na połączenie|Verbinding is verlopen|Bağlantıda zaman aşımı|"
        "Spojení bylo příliš dlouho neaktivní|Förbindelsens tidsgräns löpte ut"
    ),
    "EADDRINUSE": (
        "地址已在使用|位址已經有在使用|アドレスは既に使用中です|주소가 이미 사용 중입니다|"
        "Die Adresse wird bereits verwendet|Adresse déjà utilisée|La dirección ya se está usando|"
        "Endereço já em uso|Indirizzo già in uso|Адрес уже используется|Адресу вже використано|"
        "Adres jest już w użyciu|Adres is al in gebruik|Adres zaten kullanımda|Adresa je užívána|"
        "Adressen redan upptagen|地址已被使用"
    ),
    "ENOMEM": (
        "无法分配内存|無法配置記憶體|メモリを確保できません|메모리를 할당할 수 없습니다|"
        "Nicht genügend Hauptspeicher verfügbar|Ne peut allouer de la mémoire|No se pudo asignar memoria|"
        "Impossível alocar memória|Não foi possível alocar memória|Impossibile allocare memoria|"
        "Невозможно выделить память|Не вдалося розподілити пам’ять|Nie można przydzielić pamięci|"
        "Onvoldoende geheugen beschikbaar|Bellek ayrılamadı|Nelze alokovat paměť|Kan inte allokera minne"
    ),
    "EMFILE": (
        "打开的文件过多|開啟太多檔案|ファイルを開きすぎです|열린 파일이 너무 많음|Zu viele offene Dateien|"
        "Trop de fichiers ouverts|Demasiados ficheros abiertos|Demasiados ficheiros abertos|"
        "Muitos arquivos abertos|Troppi file aperti|Слишком много открытых файлов|Забагато відкритих файлів|"
        "Za dużo otwartych plików|Te veel open bestanden|Çok fazla açık dosya var|"
        "Překročen limit počtu otevřených souborů|För många öppna filer"
    ),
    "EROFS": (
        "只读文件系统|唯讀的檔案系統|読み込み専用ファイルシステムです|읽기전용 파일 시스템|"
        "Das Dateisystem ist nur lesbar|Système de fichiers accessible en lecture seulement|"
        "Sistema de ficheros de sólo lectura|Sistema de ficheiros só de leitura|"
        "Sistema de arquivos somente para leitura|File system in sola lettura|"
        "Файловая система доступна только для чтения|Файлова система тільки для зчитування|"
        "System plików wyłącznie do odczytu|Bestandssysteem is alleen-lezen|Salt-okunur dosya sistemi|"
        "Systém souborů je pouze pro čtení|Skrivskyddat filsystem"
    ),
    "EIO": (
        "输入/输出错误|輸入/輸出錯誤|入力/出力エラーです|입력/출력 오류|Eingabe-/Ausgabefehler|"
        "Erreur d'entrée/sortie|Error de entrada/salida|Erro de entrada/saída|Errore di input/output|"
        "Ошибка ввода/вывода|Помилка введення-виведення|Błąd wejścia/wyjścia|Invoer-/uitvoerfout|"
        "Girdi/Çıktı hatası|Chyba vstupu/výstupu|In/ut-fel"
    ),
    "EPERM": (
        "不允许的操作|此項操作並不被允許|許可されていない操作です|명령을 허용하지 않음|"
        "Die Operation ist nicht erlaubt|Opération non permise|Operación no permitida|Operação não permitida|"
        "Operazione non permessa|Операция не позволена|Дію заборонено|Operacja niedozwolona|"
        "Actie is niet toegestaan|İşleme izin verilmedi|Operace není povolena|Operationen inte tillåten|操作不允许"
    ),
    "EEXIST": (
        "文件已存在|檔案已存在|ファイルが存在します|파일이 있습니다|Die Datei existiert bereits|Le fichier existe|"
        "El fichero ya existe|O ficheiro existe|Arquivo existe|File già esistente|Файл существует|Файл вже існує|"
        "Plik istnieje|Bestand bestaat al|Dosya var|Soubor již existuje|Filen existerar"
    ),
    "ENOTDIR": (
        "不是目录|並不是一個目錄|ディレクトリではありません|디렉터리가 아닙니다|Ist kein Verzeichnis|"
        "N'est pas un dossier|No es un directorio|Não é pasta|Não é um diretório|Non è una directory|"
        "Это не каталог|Не є каталогом|Nie jest katalogiem|Is geen map|Bir dizin değil|není adresářem|"
        "Inte en katalog"
    ),
    "EISDIR": (
        "是一个目录|是個目錄|ディレクトリです|디렉터리입니다|Ist ein Verzeichnis|est un dossier|Es un directorio|"
        "É pasta|É um diretório|È una directory|Это каталог|Є каталогом|Jest katalogiem|Is een map|Bir dizin|"
        "je adresářem|Är en katalog"
    ),
    "ENOEXEC": (
        "可执行文件格式错误|可執行檔格式錯誤|実行形式エラー|Exec 형식 오류|Fehler im Format der Programmdatei|"
        "Erreur de format pour exec()|Formato de ejecutable incorrecto|Erro de formato do executável|"
        "Erro no formato exec|Formato eseguibile non valido|Ошибка формата выполняемого файла|"
        "Помилка, пов’язана з форматом виконуваних файлів|Błędny format pliku wykonywalnego|"
        "Verkeerd uitvoerbaar bestand|Çalıştırılabilir biçem hatası|Chybný formát spustitelného souboru|"
        "Formatfel på körbar fil"
    ),
    "EHOSTUNREACH": (
        "没有到主机的路由|找不到通往該主機的路由路徑|ホストへの経路がありません|호스트로 갈 루트가 없음|"
        "Keine Route zum Zielrechner|Aucun chemin d'accès pour atteindre l'hôte cible|"
        "No existe ninguna ruta hasta el `host'|Sem caminho para o anfitrião|Não há rota para o host|"
        "Nessun instradamento per l'host|Нет маршрута до узла|Немає маршруту до вузла|Brak trasy do hosta|"
        "Geen route naar host|Makinaya ağ üzerinden yol yok|K počítači neexistuje cesta|Ingen väg till värd"
    ),
    "ENETUNREACH": (
        "网络不可达|無法接觸網路|ネットワークに届きません|네트워크가 접근 불가능합니다|"
        "Das Netzwerk ist nicht erreichbar|Le réseau n'est pas accessible|La red es inaccesible|Rede inacessível|"
        "A rede está fora de alcance|La rete non è raggiungibile|Сеть недоступна|"
        "Не вдалося отримати доступ до мережі|Sieć jest niedostępna|Netwerk is onbereikbaar|"
        "Ağ erişilebilir durumda değil|Síť není dostupná|Nätverket kan inte nås"
    ),
    "EPIPE": (
        "断开的管道|管線損壞|파이프가 깨어짐|Datenübergabe unterbrochen (broken pipe)|Relais brisé (pipe)|"
        "Tubería rota|Túnel quebrado|Pipe quebrado|Pipe interrotta|Обрыв канала|Канал обірвано|Przerwany potok|"
        "Gebroken pijp|Veri alınamıyor|Roura přerušena (SIGPIPE)|Brutet rör"
    ),
    "EBUSY": (
        "设备或资源忙|裝置或系統資源忙碌中|デバイスもしくはリソースがビジー状態です|장치나 자원이 동작 중|"
        "Das Gerät oder die Ressource ist belegt|Périphérique ou ressource occupé|Dispositivo o recurso ocupado|"
        "Dispositivo ou recurso ocupado|Dispositivo ou recurso está ocupado|Dispositivo o risorsa occupata|"
        "Устройство или ресурс занято|Пристрій або ресурс зайнято|Urządzenie lub zasoby zajęte|"
        "Apparaat of hulpbron is bezig|Aygıt ya da özkaynak meşgul|Zařízení nebo zdroj jsou používány|"
        "Enhet eller resurs upptagen"
    ),
}
